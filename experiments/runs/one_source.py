"""Costs of one source for runs that are compared with one another."""

from collections.abc import Iterable, Sequence

from testbed.cost.sections import SYSTEM
from testbed.experiments.runs.compose import configured
from testbed.run.config import RunConfig
from testbed.run.machine import ITERATIONS, cost_of
from testbed.run.override_words import key_of

COST = "cost"
OF_ONE_SOURCE = f"{COST}.{ITERATIONS}=null"
WHY = (
    f"{OF_ONE_SOURCE}: not all of these servers have measured iterations, so that the costs of all "
    f"are derived, to be compared (a word with {COST}. chooses others)"
)
OF_THE_LOAD = "arrivals", "trace", "seed", "slo"  # on which costs do not depend


def sources_differ(runs: Sequence[Sequence[str]]) -> bool:
    """True if some of these runs, given by their words, would take measured iterations and others
    not, so that the errors of their costs would be part of the differences. A word with cost. is
    a choice already.
    """
    if any(group_of(key_of(word)) == COST for words in runs for word in words):
        return False
    servers = dict.fromkeys(
        tuple(word for word in words if group_of(key_of(word)) not in OF_THE_LOAD) for words in runs
    )
    return len(servers) > 1 and configs_differ(map(configured, servers))


def configs_differ(configs: Iterable[RunConfig]) -> bool:
    """True if some of these runs take measured iterations and others not."""
    return len({_takes_iterations(config) for config in configs}) > 1


def group_of(key: str) -> str:
    """The config group of a key."""
    return key.partition(".")[0]


def _takes_iterations(config: RunConfig) -> bool:
    """True if a run takes whole iterations that were measured."""
    if config.engine is not None or not config.cost.parameters.get(ITERATIONS):
        return False
    return SYSTEM in (cost_of(config).fingerprint or {})
