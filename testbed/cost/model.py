"""What an iteration does, and the plug-in API for what it costs."""

from abc import ABC, abstractmethod
from math import isqrt
from typing import NamedTuple


class Work(NamedTuple):
    """What one iteration does, in counts; never in block ids.

    decode_seqs sequences write one token each and read decode_context tokens in all (the new ones included); of these,
    decode_repeated lie in shared blocks that another sequence of the iteration reads too. prefill
    lists (new tokens, tokens already stored) of every sequence in its prompt phase. num_requests requests are resident:
    what software does for each of them costs time too. The rest counts blocks, or for contiguous memory extents: copied
    on the device, moved to the host and back, with the tokens in them.
    """

    decode_seqs: int = 0
    decode_context: int = 0
    prefill: tuple[tuple[int, int], ...] = ()
    decode_repeated: int = 0
    num_requests: int = 0
    copies: int = 0
    copied_tokens: int = 0
    swapped_out: int = 0
    swapped_in: int = 0
    block_size: int = 16

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


class CostModel(ABC):
    """Prices iterations. A plug-in needs only `iteration`; `decode` makes it fast."""

    @abstractmethod
    def iteration(self, work: Work) -> int:
        """Picoseconds of one iteration."""

    def decode(self, num_seqs: int, context: int, repeated: int = 0, num_requests: int = 0) -> Affine:
        """Prices of the next decode iterations of num_seqs sequences, the first of which reads `context` tokens.

        Each later one reads num_seqs tokens more; `repeated` and num_requests stay. Must equal `iteration` step by
        step, as far as it says. By default it says one step only.
        """
        work = Work(num_seqs, context, decode_repeated=repeated, num_requests=num_requests)
        return Affine(self.iteration(work), 0, 1)
