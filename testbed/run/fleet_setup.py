"""The engines of a fleet from a configuration, and what they need besides."""

from collections.abc import Callable
from dataclasses import dataclass

from testbed.core.request import Workload
from testbed.engine.engine_parts import EngineParts
from testbed.fleet.faults import parse_faults
from testbed.fleet.fleet_checks import check_fleet, check_split
from testbed.fleet.fleet_rules import FleetRules
from testbed.fleet.handovers.split import Split
from testbed.fleet.handovers.whole import Whole
from testbed.fleet.routers.round_robin import RoundRobin
from testbed.fleet.routers.router import Router
from testbed.run.build import engine_of, register_prefix
from testbed.run.build_checks import checked
from testbed.run.config import RunConfig
from testbed.sched.scheduler import Scheduler


@dataclass(frozen=True)
class FleetSetup:
    """Parts that several engines need besides a Setup. parts: of each engine, as they begin;
    make_parts: those of an engine that comes back.
    """

    parts: tuple[EngineParts, ...]
    make_parts: Callable[[int], EngineParts]
    rules: FleetRules


def fleet_setup(
    config: RunConfig, num_engines: int, workload: Workload, first: EngineParts
) -> FleetSetup:
    """The engines behind a router, of which the first has these parts. Raises InputError for what
    is not modelled with several engines.
    """
    router = _router(config)
    check_fleet(config, workload, first.scheduler, router)

    def make_parts(number: int) -> EngineParts:
        lengths = dict[int, int]()
        scheduler, cost, pool = engine_of(config.of_engine(number), lengths)
        register_prefix(workload, scheduler.memory)
        return EngineParts(scheduler, cost, first.max_len, first.beams, lengths, pool)

    others = [make_parts(number) for number in range(1, num_engines)]
    faults = () if config.faults is None else parse_faults(config.faults, num_engines)
    split = split_of(config, workload, first.scheduler)
    rules = FleetRules(router, split, faults, config.server.shared_tiers)
    return FleetSetup((first, *others), make_parts, rules)


def _router(config: RunConfig) -> Router:
    if config.router is None:
        return RoundRobin()
    return checked("router", config.router.make("router"))  # type: ignore[no-any-return]


def split_of(config: RunConfig, workload: Workload, scheduler: Scheduler) -> Split | None:
    """The set-up in which the first engines prefill for the others; None if each does all. The
    decode engine of a request is chosen by a second router of the same kind.
    """
    if config.prefill_replicas is None:
        return None
    rule = Whole()
    if config.handover is not None:
        rule = checked("handover", config.handover.make("handover"))
    check_split(config, workload, scheduler)
    model = config.model
    return Split(
        num_prefill=config.prefill_replicas,
        rule=rule,
        decode_router=_router(config),
        slot_bytes=model.kv_bytes_per_token,
        num_layers=model.num_attention_layers,
    )
