"""Random numbers that belong to a token of a request, whatever has happened before it."""

from functools import lru_cache

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def uniform(seed: int, request_id: int, position: int, stream: int) -> float:
    """A number in [0, 1) of the request's output token at `position`; streams are independent.

    It depends on its arguments alone, so a token has the same number under each policy, and again
    after a preemption. SplitMix64 (Steele, Lea, Flood 2014), once for each argument.
    """
    return (_mixed((_of_request(seed, stream, request_id) ^ position) + GOLDEN) >> 11) / (1 << 53)


@lru_cache(1 << 12)
def _of_request(seed: int, stream: int, request_id: int) -> int:
    """The state behind the first three arguments, which all tokens of a request share."""
    state = 0
    for value in (seed, stream, request_id):
        state = _mixed((state ^ value) + GOLDEN)
    return state


def _mixed(value: int) -> int:
    value &= MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)
