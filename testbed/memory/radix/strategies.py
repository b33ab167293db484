"""Orders in which leaves of a radix tree are evicted: SGLang's strategies (evict_policy.py,
0.5.23).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from testbed.core.errors import InputError

if TYPE_CHECKING:
    from testbed.memory.radix.tree import Run

Rank = tuple[int, int]  # the lowest goes first
Strategy = Callable[["Run"], Rank]
PROTECTED = 2  # uses from which a run of slru is protected


def lru(run: "Run") -> Rank:
    """The least recently used."""
    return 0, run.used


def mru(run: "Run") -> Rank:
    """The most recently used."""
    return 0, -run.used


def fifo(run: "Run") -> Rank:
    """The oldest."""
    return 0, run.made


def filo(run: "Run") -> Rank:
    """The youngest."""
    return 0, -run.made


def lfu(run: "Run") -> Rank:
    """The leaf that the fewest sequences have published, of these the least recently used."""
    return run.num_published, run.used


def slru(run: "Run") -> Rank:
    """Leaves that one sequence alone has published, then the others; least recently used first."""
    return int(run.num_published >= PROTECTED), run.used


def priority(run: "Run") -> Rank:
    """Leaves that sequences of the lowest number have published; least recently used first."""
    return run.priority, run.used


KEY = "policy.radix_eviction_policy"
STRATEGIES: dict[str, Strategy] = {
    rule.__name__: rule for rule in (lru, lfu, fifo, mru, filo, priority, slru)
}


def strategy_named(name: str) -> Strategy:
    """The strategy of this name. Raises InputError for another."""
    if name == "tlru":
        raise InputError(
            key=KEY,
            value=name,
            problem=(
                "is not modelled; its thresholds are 0 unless they are given, with which it is lru "
                "but for the refreshing of waiting requests"
            ),
            remedy=f"choose from {', '.join(STRATEGIES)}",
        )
    if name not in STRATEGIES:
        raise InputError(
            key=KEY, value=name, problem="is unknown", remedy=f"choose from {', '.join(STRATEGIES)}"
        )
    return STRATEGIES[name]
