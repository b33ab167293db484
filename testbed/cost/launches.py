"""Times that the host takes to plan, prepare and launch iterations, from a profile's sections."""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from testbed.core.slots import record
from testbed.cost.layer_times import level_beyond
from testbed.cost.model import Launch
from testbed.cost.sections import Rows, rows

PARTS = ("first", "whole")
UNSEEN = "launch_unseen"
OverSeqs = Callable[[int], int]
NO_LAUNCH = Launch(0, 0)


class Launches:
    """Launches by scheduled tokens and sequences; None of a profile without such sections.

    Over sequences they are linear between measured numbers, and level beyond. A number of prompt
    tokens takes the time of the next measured one, and beyond the last one its: what fits into
    graphs is launched as graphs. Decodes take no longer than `least`, picoseconds by tokens. A
    number of tokens beyond the graphs that is launched with prompts the first time takes longer.
    is_known: the profile has one of them.
    """

    def __init__(self, profile: Mapping[str, Any], least: Callable[[int], int]) -> None:
        self._least = least
        self._decodes: dict[str, OverSeqs] = {}
        if "launch_decodes" in profile["sections"]:
            self._decodes = _of_decodes(sorted(rows(profile, "launch_decodes")))
        self._prompts: dict[int, dict[str, OverSeqs]] = {}
        if "launch_prompts" in profile["sections"]:
            self._prompts = _of_prompts(sorted(rows(profile, "launch_prompts")))
        unseen = rows(profile, UNSEEN) if UNSEEN in profile["sections"] else []
        self._unseen = sorted((num_tokens, ps) for (num_tokens,), ps in unseen)
        self.is_known = bool(self._decodes or self._prompts)
        self._launch = cache(self._of_counts)

    def __call__(self, decode_seqs: int, num_prompts: int, prompt_tokens: int) -> Launch | None:
        if not self.is_known:
            return None
        return self._launch(decode_seqs + num_prompts, decode_seqs + prompt_tokens, num_prompts > 0)

    def _of_counts(self, num_seqs: int, num_tokens: int, has_prompts: bool) -> Launch:
        curves = self._decodes
        if has_prompts and self._prompts:
            counts = list(self._prompts)
            curves = self._prompts[counts[min(bisect_left(counts, num_tokens), len(counts) - 1)]]
        if not curves:
            return NO_LAUNCH
        first, whole = (curves[part](num_seqs) for part in PARTS)
        if not has_prompts:
            whole = min(whole, self._least(num_tokens))
        return record(Launch, (min(first, whole), whole, self._unseen_ps(num_tokens, has_prompts)))

    def _unseen_ps(self, num_tokens: int, has_prompts: bool) -> int:
        reached = [ps for least, ps in self._unseen if has_prompts and num_tokens >= least]
        return reached[-1] if reached else 0


def _of_decodes(points: Rows) -> dict[str, OverSeqs]:
    measured = dict[str, dict[int, int]]()
    for (part, num_seqs), ps in points:
        measured.setdefault(part, {})[num_seqs] = ps
    return {part: level_beyond(curve) for part, curve in measured.items()}


def _of_prompts(points: Rows) -> dict[int, dict[str, OverSeqs]]:
    """Curves by the number of tokens, in order."""
    by_tokens = dict[int, Rows]()
    for (part, num_tokens, num_seqs), ps in points:
        by_tokens.setdefault(num_tokens, []).append(((part, num_seqs), ps))
    return {num_tokens: _of_decodes(by_tokens[num_tokens]) for num_tokens in sorted(by_tokens)}
