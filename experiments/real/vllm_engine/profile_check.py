"""The error of a profile on the iterations with prompts among decodes.

Their computation is predicted from prompts and decodes alone; their launches are medians of the
same iterations.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from testbed.core.request import PS
from testbed.core.specs import ModelSpec
from testbed.cost.model import Launch, Work
from testbed.cost.profile import ProfileCost
from testbed.engine.host_launches import HostLaunches, computed_ps, launch_of
from testbed.experiments.real.vllm_engine.logged_steps import prompts_among_decodes

MS = PS // 1000


def errors_among(steps: pd.DataFrame, profile: Mapping[str, Any]) -> dict[str, float] | None:
    """Relative errors from when the host is free for such an iteration to the end of the next one,
    of decodes; None without any.
    """
    rows = among(steps)
    if rows.empty or "launch_decodes" not in profile["sections"]:
        return None
    cost = ProfileCost(ModelSpec(**profile["model"]), None, profile)
    real = real_ms(rows)
    predicted = np.array([until_next_end_ms(cost, row) for row in rows.itertuples()])
    errors = (predicted / real.to_numpy(float)) - 1
    return {
        "median_error": round(float(np.median(np.abs(errors))), 4),
        "p95_error": round(float(np.percentile(np.abs(errors), 95)), 4),
        "mean_error": round(float(predicted.sum() / real.sum() - 1), 4),
        "num_batches": len(rows),
    }


def among(steps: pd.DataFrame) -> pd.DataFrame:
    """The iterations with prompts that decodes alone are before and behind."""
    rows = prompts_among_decodes(steps)
    return rows[rows.decodes_behind > 0]


def real_ms(rows: pd.DataFrame) -> "pd.Series[float]":
    """The time from the host's being free for such an iteration to the end of the next one."""
    return rows.handed_ms + rows.ms_from_plan - rows.late_ms + rows.next_end_ms


def until_next_end_ms(cost: ProfileCost, row: Any, slowness: float = 1.0) -> float:
    """As the simulator has it: three iterations, the middle one with prompts; by a host `slowness`
    times as slow as in its mean.
    """
    before, now, behind = _three(row)
    launch = _launch(cost, now, slowness, is_unseen=row.is_unseen)
    next_launch = _launch(cost, behind, slowness)
    host, before_end = HostLaunches(), cost.iteration(before)
    launched = host.launch(launch, 0, now.num_tokens)
    end = computed_ps(launch, launched, before_end, cost.iteration(now))
    next_launched = host.launch(next_launch, max(before_end, launched), behind.num_tokens)
    return computed_ps(next_launch, next_launched, end, cost.iteration(behind)) / MS


def three_and_a_constant_ms(cost: ProfileCost, row: Any, constant_ms: float) -> float:
    """The same three iterations one after the other, each a constant longer than it computes."""
    return sum(cost.iteration(work) / MS + constant_ms for work in _three(row))


def before_ms(cost: ProfileCost, row: Any) -> float:
    """The time in which the GPU computes the iteration before."""
    return cost.iteration(_three(row)[0]) / MS


def launch_ms(cost: ProfileCost, row: Any) -> float:
    """The time in which a host of mean speed launches the iteration."""
    _, now, _ = _three(row)
    launch = _launch(cost, now, 1.0, is_unseen=row.is_unseen)
    return (launch.whole_ps + launch.unseen_ps) / MS


def decodes_ms(cost: ProfileCost, row: Any) -> float:
    """The time of decodes alone behind as many."""
    return cost.iteration(_work(row.decodes, row.decode_context)) / MS


def lone_ms(cost: ProfileCost, row: Any) -> float:
    """The time of prompts that are planned when nothing is under way."""
    work = _work(0, 0, row.prefill)
    launch = _launch(cost, work, 1.0, is_unseen=row.is_unseen)
    launched = HostLaunches().launch(launch, 0, work.num_tokens)
    return computed_ps(launch, launched, 0, cost.iteration(work)) / MS


def _three(row: Any) -> tuple[Work, Work, Work]:
    """The iteration, between the one before and the one behind."""
    return (
        _work(row.decodes_before, row.context_before),
        _work(row.decodes, row.decode_context, row.prefill),
        _work(row.decodes_behind, row.decode_context),
    )


def _launch(cost: ProfileCost, work: Work, slowness: float, *, is_unseen: bool = False) -> Launch:
    launch = launch_of(cost, work)
    assert launch is not None
    first, whole, unseen = (round(ps * slowness) for ps in launch)
    return Launch(first, whole, unseen if is_unseen else 0)


def _work(num_seqs: float, context: float, prefill: tuple[tuple[int, int], ...] = ()) -> Work:
    count, tokens = int(num_seqs), int(context)
    return Work(count, tokens, -(-tokens // count) if count else 0, prefill=prefill)
