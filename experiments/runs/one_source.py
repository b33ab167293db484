"""Costs of one source for runs that are compared with one another."""

from collections.abc import Sequence

from testbed.cost.sections import SYSTEM
from testbed.experiments.runs.compose import configured
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
    if any(_group(word) == COST for words in runs for word in words):
        return False
    servers = dict.fromkeys(
        tuple(word for word in words if _group(word) not in OF_THE_LOAD) for words in runs
    )
    if len(servers) < 2:
        return False
    return len({_takes_iterations(words) for words in servers}) > 1


def _group(word: str) -> str:
    return key_of(word).partition(".")[0]


def _takes_iterations(words: Sequence[str]) -> bool:
    """True if a run of these words takes whole iterations that were measured."""
    config = configured(words)
    if config.engine is not None or not config.cost.parameters.get(ITERATIONS):
        return False
    return SYSTEM in (cost_of(config).fingerprint or {})
