"""A configuration with speculation: the same parts, as they are with drafts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from testbed.core.errors import InputError
from testbed.core.request import Workload
from testbed.core.specs import ModelSpec, ServerSpec
from testbed.cost.model import CostModel
from testbed.cost.speculative import SpeculativeCost
from testbed.memory.served import Drafts
from testbed.run.config import RunConfig
from testbed.run.constructor_parameters import parameters_of
from testbed.run.oracles import class_of, is_oracle
from testbed.run.parts import Part, locate
from testbed.sched.scheduler import Scheduler
from testbed.sched.speculating_v1 import AsyncSpeculatingV1, SpeculatingV1
from testbed.sched.vllm_v1 import AsyncVllmV1, VllmV1
from testbed.speculation.pass_cost import NO_SOFTWARE
from testbed.speculation.speculation import Speculation
from testbed.vllm.releases import release_numbered

SPECULATION = "speculation"  # of a summary: what became of the drafts
SPECULATING: Mapping[object, type] = {VllmV1: SpeculatingV1, AsyncVllmV1: AsyncSpeculatingV1}


def with_drafts(config: RunConfig, speculation: Speculation) -> RunConfig:
    """The config whose scheduler plans drafts, and whose policy finds no more of a prefix than the
    drafter has. Raises InputError for what is not modelled with drafts.
    """
    _check_run(config)
    _check_software(config)
    target = config.scheduler.target
    target = locate(target, "scheduler") if isinstance(target, str) else target
    if target not in SPECULATING:
        raise InputError(
            f"speculation: scheduler={config.scheduler.name.rpartition('.')[2]} plans no drafts "
            f"(scheduler=vllm_v1 or scheduler=vllm_v1_async, or leave speculation out)"
        )
    scheduler = replace(config.scheduler, target=SPECULATING[target]).updated(
        speculation=speculation, max_len=config.model.max_len
    )
    return replace(config, scheduler=scheduler, policy=_policy(config, speculation))


def _check_software(config: RunConfig) -> None:
    """Refuse software times of the drafter's own: the model's costs charge these, once an
    iteration.
    """
    part = config.speculation
    own = part.parameters.get("efficiencies") if part is not None else None
    if not isinstance(own, Part):
        return
    software = config.software
    usual = {"software": software.name if software else None}
    for name in NO_SOFTWARE:
        value = own.parameters.get(name)
        of_system = usual.get(name, getattr(software, name, None))
        if value and value != of_system:
            raise InputError(
                f"speculation.efficiencies.{name}={value}: nothing reads it, for software times "
                "are the model's (leave it out)"
            )


def _policy(config: RunConfig, speculation: Speculation) -> Part:
    part, release = config.policy, release_numbered(config.release)
    if part.is_instance or not (release.admits_with_drafts or speculation.drops_last_block):
        return part
    target = locate(part.target, "policy") if isinstance(part.target, str) else part.target
    if not hasattr(target, "lookup"):
        return part  # it finds nothing
    if "drafts" not in (parameters_of(target) or {}):
        raise InputError(
            f"speculation: what {type(speculation).__name__} needs of the cache of prefixes, "
            f"{part.name} does not do (policy=prefix_caching_v1, or policy=paged)"
        )
    reads_states = speculation.drops_last_block
    return part.updated(drafts=Drafts.OF_HIDDEN_STATES if reads_states else Drafts.OF_TOKENS)


def drafts_of(scheduler: Scheduler) -> dict[str, Any]:
    """What a summary says of drafts; nothing of a run without any."""
    return {SPECULATION: scheduler.counts.summary} if isinstance(scheduler, SpeculatingV1) else {}


def speculative_cost(
    cost: CostModel, speculation: Speculation, model: ModelSpec, server: ServerSpec
) -> CostModel:
    """The cost of iterations with drafts."""
    drafter = speculation.draft_cost(model, server)
    return SpeculativeCost(cost, drafter, speculation.max_drafts, speculation.off_above)


def check_requests(workload: Workload) -> None:
    """Refuse requests of several sequences."""
    if workload.num_seqs > 1 or workload.has_beams:
        raise InputError(
            "speculation: parallel samples and beams with drafts are not modelled "
            "(workload.num_seqs=1, or leave speculation out)"
        )


def _check_run(config: RunConfig) -> None:
    if config.replicas is not None:
        raise InputError(
            f"replicas={config.replicas}: engines behind a router with drafts are not modelled "
            f"(leave replicas or speculation out)"
        )
    if is_oracle(class_of("policy", config.policy)):
        raise InputError(
            f"speculation: policy={config.policy.name.rpartition('.')[2]} reserves slots for the "
            f"true output length, and none for drafts behind it (another policy)"
        )
    if config.server.tiers:
        raise InputError(
            "server.tiers: prefixes below the GPUs with drafts are not modelled (leave the tiers "
            "or speculation out)"
        )
    if config.model.window is not None or config.model.states is not None:
        raise InputError(
            f"speculation: {config.model.name} has windows or states, and drafts that are rejected "
            f"there are not modelled (choose a model of full attention)"
        )
