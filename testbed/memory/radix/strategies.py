"""Orders in which leaves of a radix tree are evicted: SGLang's strategies (evict_policy.py,
0.5.23).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.core.errors import InputError, check_known

if TYPE_CHECKING:
    from testbed.memory.radix.tree import Run

Rank = tuple[int, int]  # the lowest goes first
Strategy = Callable[["Run"], Rank]
KEY = "policy.radix_eviction_policy"
CONFIG_KEY = f"{KEY}_config"


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


def priority(run: "Run") -> Rank:
    """Leaves that sequences of the lowest number have published; least recently used first."""
    return run.priority, run.used


@dataclass(frozen=True)
class Slru:
    """Leaves that fewer than protected_threshold sequences have published, then the others; least
    recently used first.
    """

    protected_threshold: int = 2

    def __call__(self, run: "Run") -> Rank:
        return int(run.num_published >= self.protected_threshold), run.used


@dataclass(frozen=True)
class Tlru:
    """Tail-optimized LRU (Zhang et al., 2025): leaves that a conversation can lose and compute no
    more than `threshold` tokens for its next turn, then the others; least recently used first.

    Such a leaf begins at or behind what was ever stored from the root on past it, plus
    next_prompt_estimate, less threshold (all in tokens; a block has block_size).
    """

    block_size: int
    threshold: int = 0
    next_prompt_estimate: int = 0

    def __post_init__(self) -> None:
        """Refuse what SGLang's server refuses, the default among it."""
        if not 0 <= self.next_prompt_estimate < self.threshold:
            raise InputError(
                key=CONFIG_KEY,
                value={name: getattr(self, name) for name in ("threshold", "next_prompt_estimate")},
                problem="threshold must be above next_prompt_estimate, and both not below 0",
                remedy="give {threshold: 4096, next_prompt_estimate: 512}, say",
            )

    def __call__(self, run: "Run") -> Rank:
        kept = run.farthest * self.block_size + self.next_prompt_estimate - self.threshold
        begin = (run.end - len(run.key)) * self.block_size
        return -int(begin >= kept), run.used


PLAIN: dict[str, Strategy] = {rule.__name__: rule for rule in (lru, lfu, fifo, mru, filo, priority)}
WITH_PARAMETERS = {  # the parameters of radix_eviction_policy_config
    "slru": ("protected_threshold",),
    "tlru": ("threshold", "next_prompt_estimate"),
}
STRATEGIES = (*PLAIN, *WITH_PARAMETERS)


def strategy_named(
    name: str, config: Mapping[str, int] | None = None, block_size: int = 1
) -> Strategy:
    """The strategy of this name with these parameters. Raises InputError for another name or
    parameter.
    """
    check_known(KEY, name, STRATEGIES)
    given = dict(config or {})
    for key in given:
        if key not in WITH_PARAMETERS.get(name, ()):
            raise InputError(
                key=f"{CONFIG_KEY}.{key}", problem=f"{name} has no such parameter", remedy="omit it"
            )
    if name == "slru":
        return Slru(**given)
    return Tlru(block_size, **given) if name == "tlru" else PLAIN[name]
