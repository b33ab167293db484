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
AROUND = ("decodes", "windows", "median ms", "predicted", "mean ms", "predicted", "error")
BEFORE, BEHIND = 1, 2  # iterations of a window beside the one with prompts, which have none
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


def windows(iterations: pd.DataFrame) -> pd.DataFrame:
    """The time of an iteration with prompts together with its neighbours, if these and the next
    ones decode alone: when its launch delays the results of others, the sum has all of it.
    """
    steps = iterations.reset_index(drop=True)
    decode_alone = (steps.prompts == 0) & (steps.decodes > 0) & ~steps.is_first.astype(bool)
    beside = [n for n in range(-BEFORE - 1, BEHIND + 1) if n]
    alone = pd.concat([decode_alone.shift(-n, fill_value=False) for n in beside], axis=1).all(
        axis=1
    )
    is_one = (steps.prompts > 0) & (steps.decodes > 0) & alone
    sums = steps[["ms", "predicted_ms"]].rolling(BEFORE + 1 + BEHIND).sum().shift(-BEHIND)
    return sums[is_one].assign(decodes=steps.decodes[is_one].astype(int))


def around_prompts(iterations: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    """Rows as in AROUND, by the decodes in each doubling."""
    found = windows(iterations)
    for bits, kind in found.groupby(found.decodes.map(int.bit_length)):
        least = 1 << (int(bits) - 1)
        times = (kind.ms.median(), kind.predicted_ms.median())
        means = (kind.ms.mean(), kind.predicted_ms.mean())
        cells = (f"{ms:.2f}" for ms in (*times, *means))
        error = kind.predicted_ms.sum() / kind.ms.sum() - 1
        yield f"{least} to {2 * least - 1}", str(len(kind)), *cells, f"{error:+.1%}"


def _work(row: Any) -> Work:
    count, context = int(row.decodes), int(row.decode_context)
    return Work(count, context, -(-context // count) if count else 0, prefill=row.prefill)
