"""What an iteration does, and the plug-in API for what it costs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import isqrt
from typing import NamedTuple

from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.core.slots import DEVICE, HOST


class Moved(NamedTuple):
    """num_transfers transfers of `length` slots each from one tier to another."""

    source: str
    target: str
    length: int
    num_transfers: int


class Work(NamedTuple):
    """What one iteration does, in counts; never in block ids.

    decode_seqs sequences write one token each and read decode_context tokens in all (the new ones included), the
    longest of them decode_longest; of these tokens, decode_repeated lie in shared blocks that another sequence of the
    iteration reads too. prefill lists (new tokens, tokens already stored) of every sequence in its prompt phase;
    decodes and prompts run together. num_requests requests are resident: what software does for each costs time too.
    copies lists (length in slots, how many) on the device, moves those between tiers, extra whatever else a policy
    counts by name. forks sequences were made from others since the iteration before.
    """

    decode_seqs: int = 0
    decode_context: int = 0
    decode_longest: int = 0
    decode_repeated: int = 0
    prefill: tuple[tuple[int, int], ...] = ()
    num_requests: int = 0
    copies: tuple[tuple[int, int], ...] = ()
    moves: tuple[Moved, ...] = ()
    extra: tuple[tuple[str, int], ...] = ()
    forks: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that pass through the linear layers."""
        return self.decode_seqs + sum(new for new, _ in self.prefill)


class Affine(NamedTuple):
    """Durations of `steps` decode iterations in a row: first_ps, first_ps + growth_ps, first_ps + 2 growth_ps, ..."""

    first_ps: int
    growth_ps: int
    steps: int

    def total_ps(self, steps: int) -> int:
        """Duration of the first `steps` iterations together."""
        return steps * self.first_ps + self.growth_ps * (steps * (steps - 1) // 2)

    def steps_to_reach(self, elapsed_ps: int) -> int:
        """The fewest iterations after which at least elapsed_ps have passed; growth_ps <= 2 first_ps."""
        first, growth, _ = self
        if growth == 0:
            return -(-elapsed_ps // first)
        # total_ps(k) = elapsed_ps is a quadratic in k; the integer root is at most one step short.
        slope = 2 * first - growth
        steps = (isqrt(slope * slope + 8 * growth * elapsed_ps) - slope) // (2 * growth)
        return steps if self.total_ps(steps) >= elapsed_ps else steps + 1


UNBOUNDED = 1 << 62
MAX_PENDING = 1024  # copies that the driver takes before a call waits; kernels/results/h200-overlap.csv measures it


def with_swaps(computing_ps: int, moving_ps: int, num_copies: int, num_layers: int) -> int:
    """Time of an iteration whose swaps, num_copies calls that take moving_ps by themselves, hide behind computing.

    The 2023 system swaps on a stream of its own, and a layer waits for no blocks but its own: layer by layer, the
    slower of the two sets the pace, and the other is felt in one layer only. But the host launches no layer before the
    driver has taken every copy, and it takes MAX_PENDING at a time. `python -m kernels.measure.overlap` measures this.
    """
    waiting_ps = moving_ps * (num_copies - MAX_PENDING) // num_copies if num_copies > MAX_PENDING else 0
    moving_ps -= waiting_ps
    return waiting_ps + max(computing_ps, moving_ps) + min(computing_ps, moving_ps) // num_layers


def transfers(moves: tuple[Moved, ...]) -> dict[tuple[str, int], int]:
    """How many transfers of each length leave the device for the host ("out") and come back ("in").

    The built-in cost models know this link only.
    """
    counts = dict[tuple[str, int], int]()
    for source, target, length, count in moves:
        if {source, target} != {DEVICE, HOST}:
            raise InputError(f"the cost model has no price for transfers from {source} to {target}")
        key = ("out" if source == DEVICE else "in", length)
        counts[key] = counts.get(key, 0) + count
    return counts


def extra_ps(extra: tuple[tuple[str, int], ...], prices_s: Mapping[str, float]) -> int:
    """Picoseconds of what a policy counts by name, at so many seconds each; a name without a price is refused."""
    total = 0
    for name, count in extra:
        if name not in prices_s:
            known = ", ".join(prices_s) or "none"
            raise InputError(f"the policy counts {name!r}, which the cost model has no price for (it knows {known})")
        total += count * round(prices_s[name] * PS)
    return total


class CostModel(ABC):
    """Prices iterations. A plug-in needs only `iteration`; `decode` makes it fast."""

    @abstractmethod
    def iteration(self, work: Work) -> int:
        """Picoseconds of one iteration, a whole number above 0."""

    def decode(self, work: Work) -> Affine:
        """Prices of the next decode iterations, the first of which is `work` (no prompts, copies, moves, extra, forks).

        In each later one every sequence reads one token more; all other counts stay. Must equal `iteration` step by
        step, as far as it says. By default it says one step only.
        """
        return Affine(self.iteration(work), 0, 1)
