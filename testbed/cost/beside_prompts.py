"""The time that decodes take beside prompts, beyond their tokens and their own attention."""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any

from testbed.cost.layer_times import level_beyond
from testbed.cost.sections import rows

BESIDE = "decodes_beside_prompts"
Beside = Callable[[int, int], int]


def decodes_beside_prompts(profile: Mapping[str, Any]) -> Beside:
    """Picoseconds of an iteration by its tokens and its decodes, from the profile's section.

    A number of tokens takes the time of the next measured one, and beyond the last one its; over
    decodes it is linear between measured numbers, and level beyond.
    """
    measured = dict[int, dict[int, int]]()
    for (num_tokens, num_seqs), ps in sorted(rows(profile, BESIDE)):
        measured.setdefault(num_tokens, {})[num_seqs] = ps
    counts = list(measured)
    curves = [level_beyond(curve) for curve in measured.values()]

    def at(num_tokens: int, num_seqs: int) -> int:
        return curves[min(bisect_left(counts, num_tokens), len(counts) - 1)](num_seqs)

    return at
