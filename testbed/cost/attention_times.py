"""Attention of an iteration: mixed batches if the profile measured them, else prefill and
decodes added.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import cache, lru_cache, partial
from typing import Any

from testbed.core.errors import InputError
from testbed.core.slots import record
from testbed.cost.interpolation import (
    Knots,
    UnequalLengths,
    across,
    blend,
    bracket,
    curves,
    surface,
)
from testbed.cost.model import UNBOUNDED, Affine, Work
from testbed.cost.sections import DECODES, USUAL_BLOCK, Choices, Rows, rows, table

Prefill = tuple[tuple[int, int], ...]
MAX_CURVES = 1 << 10  # by stored tokens, each over the new ones
MAX_PROMPTS = 1 << 12  # by new and stored tokens


class Attention:
    """Picoseconds of all layers' attention.

    Raises InputError, which names a missing section, when a batch needs that section.
    """

    def __init__(self, profile: Mapping[str, Any], choices: Choices, num_layers: int) -> None:
        is_paged = choices.kernel == "paged"
        unequal = None
        if is_paged and choices.spread == "ragged" and "unequal_lengths" in profile["sections"]:
            unequal = UnequalLengths(profile["sections"]["unequal_lengths"])
        spread = "equal" if unequal else choices.spread

        def scaled(points: Rows) -> Rows:
            scale = choices.attention_scale
            return points if scale == 1 else [(key, round(ps * scale)) for key, ps in points]

        def decode_span(points: Rows) -> Callable[[Work, int], Affine]:
            chosen = scaled(of_kind(points, choices.block_size or USUAL_BLOCK, spread))
            return DecodeTable(chosen, num_layers, unequal).span

        self._repeated_read = choices.repeated_read
        self._decodes = table(profile, DECODES[choices.kernel], decode_span)
        self._prefill = table(
            profile, "prefill_attention", lambda points: PrefillTable(points, num_layers)
        )
        self._mixed: MixedTable | None = None
        if is_paged and "mixed_attention" in profile["sections"]:
            prompts = self._prefill if isinstance(self._prefill, PrefillTable) else None
            self._mixed = MixedTable(
                scaled(rows(profile, "mixed_attention")), num_layers, unequal, prompts
            )

    def __call__(self, work: Work) -> int:
        if work.prefill and self._mixed:
            return self._mixed(work, self._saved(work))
        time_ps = 0
        if work.decode_seqs:
            time_ps += self._decodes(work, self._saved(work)).first_ps
        if work.prefill:
            time_ps += self._prefill(work.prefill)
        return time_ps

    def span(self, work: Work) -> Affine:
        """Decode iterations in a row, the first of which is `work`."""
        return self._decodes(work, self._saved(work))

    def _saved(self, work: Work) -> int:
        """Tokens whose reading the L2 cache saves, because another sequence of the iteration reads
        them too.
        """
        repeated = work.decode_repeated
        return repeated - round(repeated * self._repeated_read) if repeated else 0


class DecodeTable:
    """Decode attention of all layers: for each number of sequences a piecewise affine function of
    total context.

    Between measured numbers of sequences, times are blended at equal mean context. `points` are of
    one block size and one spread of lengths; `unequal` says what unequal lengths add to equal ones,
    None if `points` are of unequal ones already.
    """

    def __init__(
        self, points: Rows, num_layers: int, unequal: UnequalLengths | None = None
    ) -> None:
        self._curves = curves(
            (num_seqs, context, ps * num_layers) for (num_seqs, context), ps in points
        )
        self._seqs = list(self._curves)
        self._unequal = unequal
        self.curve = cache(self._curve)
        self._part = cache(lambda num_seqs, share: self.curve(num_seqs).share(share))

    def span(self, work: Work, saved: int) -> Affine:
        """Iterations up to the next knot or bin, each with a token more a sequence; shared blocks
        save `saved`.
        """
        num_seqs = work.decode_seqs
        read = work.decode_context - saved
        first_ps, slope, end = self.curve(num_seqs).piece(read)
        steps = _steps(end, read, num_seqs)
        if self._unequal is not None:  # t(mean) + share * (t(longest) - t(mean))
            scaled = self._part(num_seqs, self._unequal.share(0, 0, work))
            read_if_longest = num_seqs * work.decode_max_context - saved
            longest_ps, longest_slope, longest_end = scaled.piece(read_if_longest)
            mean_ps, mean_slope, _ = scaled.piece(read)
            first_ps += longest_ps - mean_ps
            slope += longest_slope - mean_slope
            to_end = _steps(longest_end, read_if_longest, num_seqs)
            steps = min(steps, to_end, self._unequal.steps(work))
        return record(Affine, (first_ps, num_seqs * slope, steps))

    def _curve(self, num_seqs: int) -> Knots:
        if num_seqs in self._curves:
            return self._curves[num_seqs]
        low, high = bracket(self._seqs, num_seqs)
        near, far = self._curves[low], self._curves[high]
        means = sorted({x // low for x in near.x} | {x // high for x in far.x})
        return Knots(
            (m * num_seqs, blend(low, high, num_seqs, near(m * low), far(m * high))) for m in means
        )


def of_kind(points: Rows, block_size: int, spread: str) -> Rows:
    """The points of one block size and spread; those without these two axes are of equal lengths
    and any block size.
    """
    if points and len(points[0][0]) == 2:
        return points
    chosen = [((key[2], key[3]), ps) for key, ps in points if key[:2] == (block_size, spread)]
    if not chosen:
        kinds = sorted({key[:2] for key, _ in points})
        raise InputError(
            key="decode attention",
            problem=f"was not measured at block size {block_size}, {spread} lengths",
            remedy=f"measured: {kinds}",
        )
    return chosen


def _steps(end: int, x: int, stride: int) -> int:
    """The number of steps of this stride that lead from x to the end of its piece."""
    return UNBOUNDED if end == UNBOUNDED else -(-(end - x) // stride)


class PrefillTable:
    """Prefill attention of all layers, by prompts that were measured at once, or whole, as
    PROFILE_FORMAT.md says.
    """

    def __init__(self, points: Rows, num_layers: int) -> None:
        batches = curves(
            (new, count, ps * num_layers) for (count, new, past), ps in points if not past
        )
        self._batches = batches if any(len(curve.x) > 3 for curve in batches.values()) else None
        if self._batches:
            points = [(key, ps) for key, ps in points if key[0] == 1]
        shares = [
            (count, (new, past, ps * num_layers // count)) for (count, new, past), ps in points
        ]
        alone = curves(share for count, share in shares if count == 1)
        full = curves(share for count, share in shares if count != 1)
        self._whole_only = not any(past for (_, _, past), _ in points)
        self._behind = lru_cache(MAX_CURVES)(
            lambda past: (across(alone, past), across(full or alone, past))
        )
        self._of_batch = cache(partial(across, batches))
        self._times = lru_cache(MAX_PROMPTS)(self._times_of)

    def __call__(self, prefill: Prefill) -> int:
        times = [self._times(new, past) for new, past in prefill]
        slowest = max([alone for alone, _ in times])
        if self._batches and len(prefill) > 1:
            return max(
                slowest, sum([self._share(len(prefill), new, past) for new, past in prefill])
            )
        return max(slowest, sum([full for _, full in times]))

    def _times_of(self, new: int, past: int) -> tuple[int, int]:
        """The times of a prompt by itself, and as its share of a batch that fills the GPU."""
        if past and self._whole_only:
            whole_alone, whole_full = self._times(new + past, 0)
            past_alone, past_full = self._times(past, 0)
            new_alone, new_full = self._times(new, 0)
            return max(whole_alone - past_alone, new_alone), max(whole_full - past_full, new_full)
        alone, full = self._behind(past)
        return alone(new), full(new)

    def _share(self, count: int, new: int, past: int) -> int:
        if past:
            return max(
                self._share(count, new + past, 0) - self._share(count, past, 0),
                self._share(count, new, 0),
            )
        return self._of_batch(count)(new) // count


class MixedTable:
    """All layers' attention over (prefill tokens, those stored before, decodes, their mean
    context).

    Each axis is linear between its own points. Several prompts cost as much as one of as many
    tokens, with as many pairs of new and stored ones, but for what they take alone: `prompts` has
    that, or without it they take no longer than one after the other.
    """

    def __init__(
        self,
        points: Rows,
        num_layers: int,
        unequal: UnequalLengths | None = None,
        prompts: PrefillTable | None = None,
    ) -> None:
        ordered = [
            ((new, seqs, past, mean), ps * num_layers)
            for (new, past, seqs, mean), ps in sorted(points)
        ]
        self._time_ps = surface(ordered, 3, lambda curve: partial(_at_mean, curve))
        self._unequal = unequal
        self._prompts = prompts

    def __call__(self, work: Work, saved: int) -> int:
        prefill, num_seqs = work.prefill, work.decode_seqs
        new = sum(count for count, _ in prefill)
        past = prefill[0][1]
        if len(prefill) > 1:
            past = sum(count * num_stored for count, num_stored in prefill) // new
        time_ps = self._at(new, past, num_seqs, work.decode_context - saved)
        if self._unequal is not None and num_seqs > 1:
            longest = self._at(new, past, num_seqs, num_seqs * work.decode_max_context - saved)
            time_ps += round(self._unequal.share(new, past, work) * (longest - time_ps))
        if len(prefill) > 1:
            merged_ps = self._at(new, past, 0, 0)
            time_ps += min(merged_ps, self._alone(prefill)) - merged_ps
        return max(0, time_ps)

    def _alone(self, prefill: Prefill) -> int:
        """Picoseconds of these prompts without decodes."""
        if self._prompts is not None:
            return self._prompts(prefill)
        return sum(self._at(new, past, 0, 0) for new, past in prefill)

    def _at(self, new: int, past: int, num_seqs: int, context: int) -> int:
        return self._time_ps(new, num_seqs, past, num_seqs, context)


def _at_mean(curve: list[tuple[int, int]], num_seqs: int, context: int) -> int:
    """The time at a mean context of context / num_seqs, which need not be whole."""
    if len(curve) == 1 or context <= curve[0][0] * num_seqs:
        return curve[0][1]
    i = min(bisect_right(curve, context, key=lambda point: point[0] * num_seqs), len(curve) - 1)
    (low, y_low), (high, y_high) = curve[i - 1], curve[i]
    return blend(low * num_seqs, high * num_seqs, context, y_low, y_high)
