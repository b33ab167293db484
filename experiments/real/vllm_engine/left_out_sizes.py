"""The error of a profile at batch sizes that were left out of its fit.

Each number of decodes in turn is left out of the iterations with prompts among decodes, and these
are predicted together with their two neighbours. A launch is predicted for the speed that the host
had at that time, as its scheduler's own times show it, and once more for its mean speed.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from testbed.core.specs import ModelSpec
from testbed.cost.profile import ProfileCost
from testbed.experiments.real.vllm_engine.decode_fit import fit_decodes
from testbed.experiments.real.vllm_engine.logged_steps import steady_decodes
from testbed.experiments.real.vllm_engine.profile_check import among, real_ms, until_next_end_ms
from testbed.experiments.real.vllm_engine.sweep_profile import Machine, profile_of

NORMAL = 1.4826  # standard deviations in the median size of a normal error
KIND = ["decodes", "prompts", "prompt_tokens"]
HEAD = ("iterations", "host's speed", "kinds", "median", "p90", "worst", "sum")


def left_out(steps: pd.DataFrame, machine: Machine) -> pd.DataFrame:
    """A row for each iteration with prompts among decodes: its kind, and in ms real, predicted (at
    the host's speed then), at_mean (at its mean speed) and launch_ms. Empty with fewer than two
    sizes.
    """
    rows = among(steps)
    rows = rows.assign(slowness=rows.slowness / rows.slowness.mean())
    sizes = sorted(rows.decodes.unique())
    if len(sizes) < 2:
        return rows.iloc[:0].assign(real=0.0, predicted=0.0, at_mean=0.0, launch_ms=0.0)
    return pd.concat([_of_size(steps, rows, int(size), machine) for size in sizes])


def _of_size(steps: pd.DataFrame, rows: pd.DataFrame, size: int, machine: Machine) -> pd.DataFrame:
    is_of_size = (steps.decodes == size) | (steps.decodes_behind == size)
    profile = profile_of(steps[~((steps.prompts > 0) & (steps.decodes > 0) & is_of_size)], machine)
    cost = ProfileCost(ModelSpec(**profile["model"]), None, profile)
    own = rows[rows.decodes == size]
    every = list(own.itertuples())
    return own.assign(
        real=real_ms(own),
        predicted=[until_next_end_ms(cost, row, row.slowness) for row in every],
        at_mean=[until_next_end_ms(cost, row) for row in every],
        launch_ms=own.before_ms + own.handed_ms,
    )


def steady_left_out(steps: pd.DataFrame, machine: Machine) -> pd.DataFrame:
    """Decodes alone by their number, each left out but the smallest and the largest: mean real and
    predicted ms.
    """
    sizes = sorted(machine.graph_sizes)
    steady = steady_decodes(steps)
    whole = fit_decodes(steady, sizes)
    found = []
    for size in whole.num_seqs[1:-1]:
        own = steady[steady.decodes == size]
        fit = fit_decodes(steady[steady.decodes != size], sizes)
        predicted = [fit.ms(row.decodes, row.decode_context) for row in own.itertuples()]
        found.append((size, float(own.ms.mean()), float(np.mean(predicted))))
    return pd.DataFrame(found, columns=["decodes", "real", "predicted"])


def spread(steps: pd.DataFrame, machine: Machine) -> dict[str, float] | None:
    """Relative errors over the sizes left out, as standard deviations, for intervals: of launches,
    as if these alone were off, and of decodes alone. The batch of a run has sizes within a factor
    of two, and so launches are those of all sizes in a doubling. None if too few were swept.
    """
    rows = left_out(steps, machine)
    steady = steady_left_out(steps, machine)
    if rows.empty or steady.empty:
        return None
    doubling = rows.decodes.astype(int).map(int.bit_length)
    of_size = rows.groupby(doubling)[["real", "at_mean", "launch_ms"]].sum()
    launches = (of_size.at_mean - of_size.real) / of_size.launch_ms
    computing = steady.predicted / steady.real - 1
    return {
        "launches": round(_deviation(launches), 4),
        "computing": round(_deviation(computing), 4),
    }


def _deviation(errors: pd.Series) -> float:
    """The deviation of a normal distribution with this median of sizes, which one odd size does not
    move.
    """
    return float(NORMAL * errors.abs().median())


def table(steps: pd.DataFrame, machine: Machine) -> Iterator[tuple[Any, ...]]:
    """Errors in percent of the medians of kinds, and of the sum of all iterations."""
    rows = left_out(steps, machine)
    for level, name in (("as logged", "predicted"), ("its mean", "at_mean")):
        kinds = rows.groupby(KIND)[["real", name]].median()
        yield ("prompts among decodes", level, *_line(kinds.real, kinds[name], rows, name))
    steady = steady_left_out(steps, machine)
    yield ("decodes alone", "-", *_line(steady.real, steady.predicted, steady, "predicted"))


def _line(real: Any, predicted: Any, rows: pd.DataFrame, name: str) -> tuple[str, ...]:
    errors = 100 * (predicted / real - 1).abs()
    total = 100 * (rows[name].sum() / rows.real.sum() - 1)
    found = (errors.median(), np.percentile(errors, 90), errors.max())
    return (str(len(errors)), *(f"{error:.1f}" for error in found), f"{total:+.1f}")
