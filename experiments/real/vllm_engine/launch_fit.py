"""The times in which a vLLM's host hands out results, and plans, prepares, launches iterations.

The host plans the next iteration as soon as it has launched one, if none is under way; with one
under way it first waits for that one's results, and hands them out. So a launch behind others
counts from these results, and behind one that lasts longer than the GPU computes, results are read
late: at its end.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from testbed.experiments.real.vllm_engine.decode_fit import DecodeFit
from testbed.experiments.real.vllm_engine.launch_terms import MOST, Curve, OfPrompts, PromptLaunches
from testbed.experiments.real.vllm_engine.smooth import least_absolute, rising

OVER = 1.1  # a launch that ends later than so many predicted times of the iteration before is seen
MOST_HIDDEN = 0.2  # share of hidden launches up to which the others' median stands for all


class LaunchFit(NamedTuple):
    """Milliseconds by sequences. prompts: the whole launch, by the most tokens that it stands for;
    decodes: the first and the whole. Empty if none was seen. unseen: of a number of tokens beyond
    the graphs that was not launched before.
    """

    prompts: dict[int, Curve]
    first_decodes: Curve
    whole_decodes: Curve
    unseen: float = 0.0

    def first_of(self, num_seqs: Any) -> Any:
        """Until the GPU has the first of an iteration, with prompts too: planning and inputs come
        before; 0 if it is unknown. num_seqs: a number, or an array of them.
        """
        return _read(self.first_decodes, num_seqs)

    def whole_of(self, decodes: Any) -> Any:
        """Until the GPU has all of an iteration of decodes, alike."""
        return _read(self.whole_decodes, decodes)


def _read(curve: Curve, num_seqs: Any) -> Any:
    if not curve:
        return 0.0 * num_seqs
    return np.interp(num_seqs, list(curve), list(curve.values()))


def fit_launches(
    lone: pd.DataFrame,
    among: pd.DataFrame,
    decodes: DecodeFit,
    largest_graph: int,
    of_prompts: OfPrompts,
    beyond: Callable[[Curve], Curve],
) -> LaunchFit:
    """Curves that rise with the sequences. Of prompts, iterations within the graphs stand for all
    up to the largest graph, and larger ones for all others.

    Lone prompts count as launched at the host's mean speed, for nothing around them shows it; and
    as launched before, since the first of an engine may compile.
    """
    seen = seen_launches(among, decodes)
    slowness = seen.slowness / seen.slowness.mean()
    handed_out = seen.assign(launch=seen.before_ms + seen.handed_ms, slowness=slowness)
    alone = lone.assign(is_seen=True, slowness=1.0, is_unseen=False)
    every = pd.concat([alone, handed_out])
    prompts, unseen_ms = of_prompts(every, largest_graph)
    seen = seen[seen.is_seen & (seen.decodes > 0)]
    computing = _computing(seen, "decodes", "decode_context", decodes)
    behind = seen.assign(
        first=seen.handed_behind_ms + seen.next_end_ms - computing,
        whole=seen.handed_behind_ms + seen.late_ms,
    )
    first, whole = (beyond(_least(behind, part)) for part in ("first", "whole"))
    return LaunchFit(prompts, first, whole, unseen_ms)


def level(curve: Curve) -> Curve:
    """The curve as it is: a profile is level beyond the largest batch."""
    return curve


def continued(curve: Curve) -> Curve:
    """The curve, and its growth beyond the largest batch as a line through all of it has it."""
    times = np.array(list(curve.values()))
    if len(curve) < 2 or not times.all():
        return curve
    counts = np.array(list(curve), dtype=float)
    terms = np.stack([np.ones(len(counts)), counts], axis=1)
    _, per_request = least_absolute(terms, times)
    last = max(curve)
    beyond = curve[last] + per_request * (MOST - last)
    return curve if last >= MOST else {**curve, MOST: float(beyond)}


def prompts_by_size(every: pd.DataFrame, largest_graph: int) -> PromptLaunches:
    """Launches of iterations within the graphs and beyond; an unseen number of tokens is as any."""
    bounds = {False: largest_graph, True: int(every.num_tokens.max())}
    curves = {
        bounds[bool(is_large)]: _medians(kind)
        for is_large, kind in every.groupby(every.num_tokens > largest_graph)
    }
    return PromptLaunches(curves)


def _least(behind: pd.DataFrame, column: str) -> Curve:
    """The least median of the kinds of prompts before, by decodes: if the GPU computes them
    longer than the decodes are launched, the launch is hidden.
    """
    medians = behind.groupby(["decodes", "num_tokens", "prompts"])[column].median()
    least = medians.clip(lower=0).groupby("decodes").min()
    return dict(zip(map(int, least.index), rising(least.tolist()), strict=True))


def seen_launches(among: pd.DataFrame, decodes: DecodeFit) -> pd.DataFrame:
    """With whether the launch lasted longer than the decodes before were computed."""
    hidden_ms = _computing(among, "decodes_before", "context_before", decodes)
    return among.assign(is_seen=among.before_ms > OVER * hidden_ms)


def _computing(rows: pd.DataFrame, count: str, context: str, decodes: DecodeFit) -> pd.Series:
    return pd.Series(decodes.each_ms(rows[count], rows[context]), rows.index, dtype=float)


def _medians(rows: pd.DataFrame) -> Curve:
    """The medians by sequences, without numbers whose launches are mostly hidden; at the level of
    the mean, as decodes are.
    """
    groups = {
        int(count): of_count.launch[of_count.is_seen]
        for count, of_count in rows.groupby("num_seqs")
        if of_count.is_seen.mean() >= 1 - MOST_HIDDEN
    }
    medians = {count: float(times.median()) for count, times in groups.items()}
    curve = rising(list(medians.values()))
    predicted = sum(ms * len(times) for ms, times in zip(curve, groups.values(), strict=True))
    level = sum(times.sum() for times in groups.values()) / predicted if predicted else 1.0
    return dict(zip(medians, level * curve, strict=True))
