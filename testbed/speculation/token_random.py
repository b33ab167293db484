"""Random numbers that belong to a token of a request, whatever has happened before it."""

from functools import lru_cache
from typing import Any

import numpy as np

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
BLOCK = 128  # tokens of a request whose numbers are drawn at once
NUM_BLOCKS = 1 << 12  # that are kept: two streams of 2,048 requests side by side, 16 MB


def uniform(seed: int, request_id: int, position: int, stream: int) -> float:
    """A number in [0, 1) of the request's output token at `position`; streams are independent.

    It depends on its arguments alone, so a token has the same number under each policy, and again
    after a preemption. SplitMix64 (Steele, Lea, Flood 2014), once for each argument.
    """
    return _drawn(seed, stream, request_id, position // BLOCK)[position % BLOCK]


def uniforms(seed: int, request_id: int, position: int, count: int, stream: int) -> list[float]:
    """`uniform` of each of `count` tokens from `position` on."""
    block, first = divmod(position, BLOCK)
    numbers = _drawn(seed, stream, request_id, block)[first : first + count]
    if missing := count - len(numbers):
        numbers += uniforms(seed, request_id, position + len(numbers), missing, stream)
    return numbers


@lru_cache(NUM_BLOCKS)
def _drawn(seed: int, stream: int, request_id: int, block: int) -> list[float]:
    """The numbers of a block of the request's tokens."""
    state = 0
    for value in (seed, stream, request_id):
        state = _mixed((state ^ value) + GOLDEN)
    positions = np.arange(block * BLOCK, (block + 1) * BLOCK, dtype=np.uint64)
    words = _mixed((positions ^ np.uint64(state)) + np.uint64(GOLDEN))
    drawn: list[float] = ((words >> np.uint64(11)) / (1 << 53)).tolist()
    return drawn


def _mixed(value: Any) -> Any:
    """The state behind one more argument: a number of 64 bits, or each of an array."""
    value &= MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)
