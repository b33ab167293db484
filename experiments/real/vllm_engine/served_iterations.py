"""The logged iterations of a vLLM, each predicted as if the host launched these in this order.

No request waits for another here, so this is the error of the costs alone. The launch of a prompt
delays the results of the iteration before it in a vLLM, and its own in a simulation: so iterations
count together with those next to them.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from testbed.core.request import PS
from testbed.core.specs import ModelSpec
from testbed.cost.model import Work
from testbed.cost.profile import ProfileCost
from testbed.engine.host_launches import Replay, Served
from testbed.experiments.real.vllm_engine.logged_steps import read_steps

HEAD = ("iterations", "number", "median ms", "predicted", "mean ms", "predicted", "error of all")
ALONE, BESIDE, ALL = "decodes, no prompts beside them", "prompts, decodes beside them", "all"
MS = PS // 1000


def predicted_iterations(folder: Path, profile: Mapping[str, Any]) -> pd.DataFrame:
    """The iterations of the log in this folder as `read_steps` has them, with predicted_ms."""
    steps = read_steps(folder)
    replay = Replay(ProfileCost(ModelSpec(**profile["model"]), None, profile), plans_ahead=True)
    for row in steps.itertuples():
        replay.serve(Served(_work(row), not row.is_first))
    return steps.assign(predicted_ms=[duration / MS for duration in replay.durations_ps])


def table(iterations: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    """Rows as in HEAD. The error is the share of the time of all iterations."""
    beside = iterations[["prompts", "prompts_before", "prompts_behind"]].any(axis=1)
    kinds = {ALONE: iterations[~beside], BESIDE: iterations[beside], ALL: iterations}
    whole_ms = iterations.ms.sum()
    for name, kind in kinds.items():
        times = (kind.ms.median(), kind.predicted_ms.median())
        means = (kind.ms.mean(), kind.predicted_ms.mean())
        error = (kind.predicted_ms.sum() - kind.ms.sum()) / whole_ms
        yield name, str(len(kind)), *(f"{ms:.2f}" for ms in (*times, *means)), f"{error:+.2%}"


def _work(row: Any) -> Work:
    count, context = int(row.decodes), int(row.decode_context)
    return Work(count, context, -(-context // count) if count else 0, prefill=row.prefill)
