"""The error of a profile at batch sizes that were left out of its fit.

Each number of decodes in turn is left out of the iterations with prompts among decodes, and these
are predicted together with their two neighbours. A launch is predicted for the speed that the host
had at that time, as its scheduler's own times show it, and once more for its mean speed. Each size
of prompts alone, and of decodes alone, is left out by itself.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from testbed.cost.profile import ProfileCost, check_shard
from testbed.experiments.real.vllm_engine.decode_fit import batches_of, fit_batches
from testbed.experiments.real.vllm_engine.forms import BY_SIZE, OF_SUMS, Form
from testbed.experiments.real.vllm_engine.logged_steps import KIND, lone_prompts, steady_decodes
from testbed.experiments.real.vllm_engine.profile_check import (
    among,
    decodes_ms,
    lone_ms,
    real_ms,
    three_and_a_constant_ms,
    until_next_end_ms,
)
from testbed.experiments.real.vllm_engine.sweep_profile import Machine, profile_of

NORMAL = 1.4826  # standard deviations in the median size of a normal error
HEAD = ("iterations", "predicted by", "kinds", "median", "p90", "worst", "sum")
LAUNCHES = {"launch_prompts", "launch_decodes"}
CONSTANT_MS = 3.0  # of an iteration, in place of launches


def left_out(steps: pd.DataFrame, machine: Machine, form: Form = OF_SUMS) -> pd.DataFrame:
    """A row for each iteration with prompts among decodes: its kind, and in ms real, predicted (at
    the host's speed then), at_mean (at its mean speed), by_constant (no launches, but CONSTANT_MS
    an iteration) and launch_ms. Empty with fewer than two sizes.
    """
    rows = among(steps)
    rows = rows.assign(slowness=rows.slowness / rows.slowness.mean())
    sizes = sorted(rows.decodes.unique())
    if len(sizes) < 2:
        names = ("real", "predicted", "at_mean", "by_constant", "launch_ms")
        return rows.iloc[:0].assign(**dict.fromkeys(names, 0.0))
    return pd.concat([_of_size(steps, rows, int(size), machine, form) for size in sizes])


def _of_size(
    steps: pd.DataFrame, rows: pd.DataFrame, size: int, machine: Machine, form: Form
) -> pd.DataFrame:
    is_of_size = (steps.decodes == size) | (steps.decodes_behind == size)
    others = steps[~((steps.prompts > 0) & (steps.decodes > 0) & is_of_size)]
    cost = _cost(profile_of(others, machine, form))
    own = rows[rows.decodes == size]
    every = list(own.itertuples())
    return own.assign(
        real=real_ms(own),
        predicted=[until_next_end_ms(cost, row, row.slowness) for row in every],
        at_mean=[until_next_end_ms(cost, row) for row in every],
        by_constant=[three_and_a_constant_ms(cost, row, CONSTANT_MS) for row in every],
        launch_ms=own.before_ms + own.handed_ms,
    )


def steady_left_out(steps: pd.DataFrame, machine: Machine, form: Form = OF_SUMS) -> pd.DataFrame:
    """Decodes alone by their number, each left out but the smallest and the largest: mean real and
    predicted ms.
    """
    batches = batches_of(steady_decodes(steps), sorted(machine.graph_sizes))
    found = []
    for size in list(batches)[1:-1]:
        own = batches[size].rows
        others = {count: each for count, each in batches.items() if count != size}
        predicted = fit_batches(others, form.of_decodes).each_ms(own.decodes, own.decode_context)
        found.append((size, float(own.ms.mean()), float(np.mean(predicted))))
    return pd.DataFrame(found, columns=["decodes", "real", "predicted"])


def spread(steps: pd.DataFrame, machine: Machine, form: Form = OF_SUMS) -> dict[str, float] | None:
    """Relative errors over the sizes left out, as standard deviations, for intervals: of launches,
    as if these alone were off, and of decodes alone. The batch of a run has sizes within a factor
    of two, and so launches are those of all sizes in a doubling. None if too few were swept.
    """
    rows = left_out(steps, machine, form)
    steady = steady_left_out(steps, machine, form)
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


def lone_left_out(steps: pd.DataFrame, machine: Machine) -> pd.DataFrame:
    """Prompts alone by their tokens, each number left out but the smallest and the largest: median
    real and predicted ms.
    """
    lone = lone_prompts(steps)
    lone = lone[lone.prompts == 1]
    rows = []
    for tokens in sorted(lone.prompt_tokens.unique())[1:-1]:
        is_own = (steps.prompts == 1) & (steps.prompt_tokens == tokens) & (steps.decodes == 0)
        cost = _cost(profile_of(steps[~is_own], machine))
        own = lone[lone.prompt_tokens == tokens]
        predicted = np.median([lone_ms(cost, row) for row in own.itertuples()])
        rows.append((tokens, float(own.ms.median()), float(predicted)))
    return pd.DataFrame(rows, columns=["tokens", "real", "predicted"])


def _cost(profile: dict[str, Any]) -> ProfileCost:
    return ProfileCost(ModelSpec(**profile["model"]), None, profile)


def table(steps: pd.DataFrame, machine: Machine) -> Iterator[tuple[Any, ...]]:
    """Errors in percent of the medians of kinds, and of the sum of all iterations."""
    rows = left_out(steps, machine)
    if not rows.empty:
        yield from _among(rows, left_out(steps, machine, BY_SIZE))
    for name, alone in (
        ("decodes alone", steady_left_out(steps, machine)),
        ("prompts alone", lone_left_out(steps, machine)),
    ):
        if not alone.empty:
            yield name, "the profile", *_line(alone.real, alone.predicted)


def table_of(
    profile: Mapping[str, Any], steps: pd.DataFrame, machine: Machine
) -> Iterator[tuple[Any, ...]]:
    """The same errors of a profile of another host; raises InputError if it has no launches, or is
    of another model, GPU or number of GPUs than the sweeps.
    """
    check_shard(profile, machine.model, machine.num_gpus)
    here, there = (of.get("device") for of in (machine.fingerprint, profile["fingerprint"]))
    if here != there:
        raise InputError(key="--profile", problem=f"is of {there}, the sweeps are of {here}")
    if not set(profile["sections"]) >= LAUNCHES:
        raise InputError(
            key="--profile",
            problem=f"the profile of {profile['model']['name']} has no launches of a host",
            remedy="give one that testbed gpu calibrate --system vllm made",
        )
    cost, lone = _cost(dict(profile)), lone_prompts(steps)
    for name, rows, real, kind, predict in (
        ("prompts among decodes", found := among(steps), real_ms(found), KIND, until_next_end_ms),
        ("decodes alone", found := steady_decodes(steps), found.ms, ["decodes"], decodes_ms),
        ("prompts alone", lone, lone.ms, KIND, lone_ms),
    ):
        if not rows.empty:
            every = rows.assign(real=real, predicted=[predict(cost, r) for r in rows.itertuples()])
            kinds = every.groupby(kind)[["real", "predicted"]].median()
            total = every.predicted.sum() / every.real.sum()
            yield name, "that profile", *_line(kinds.real, kinds.predicted, total)


def _among(rows: pd.DataFrame, by_size: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """The profile's own form, and what else was tried or would do: a curve of the launches by size,
    and a constant. A form that reproduced one pass of the sweeps exactly would be off by what
    repeats of a kind differ between two passes, minutes apart.
    """
    for predicted_by, form, name in (
        ("the profile", rows, "at_mean"),
        ("the profile, at the host's speed then", rows, "predicted"),
        ("launches by size", by_size, "at_mean"),
        ("launches by size, at the host's speed then", by_size, "predicted"),
        (f"{CONSTANT_MS:g} ms an iteration", rows, "by_constant"),
    ):
        kinds = form.groupby(KIND)[["real", name]].median()
        total = form[name].sum() / form.real.sum()
        yield "prompts among decodes", predicted_by, *_line(kinds.real, kinds[name], total)
    first, last = _apart(rows)
    yield "prompts among decodes", "repeats of the kind at another time", *_line(last, first)


def _apart(rows: pd.DataFrame) -> tuple[Any, Any]:
    """Medians of the kinds in the first and in the last pass; with one pass, of the first and of
    the second half of their repeats.
    """
    passes = sorted(rows.pass_s.dropna().unique())
    if len(passes) > 1:
        parts = [rows[rows.pass_s == began] for began in (passes[0], passes[-1])]
    else:
        number = rows.groupby(KIND).cumcount()
        half = rows.groupby(KIND).real.transform("size") // 2
        parts = [rows[number < half], rows[number >= half]]
    medians = pd.concat([part.groupby(KIND).real.median() for part in parts], axis=1).dropna()
    return medians.iloc[:, 0], medians.iloc[:, 1]


def _line(real: Any, predicted: Any, total: float | None = None) -> tuple[str, ...]:
    errors = 100 * (predicted / real - 1).abs()
    total = predicted.sum() / real.sum() if total is None else total
    found = (errors.median(), np.percentile(errors, 90), errors.max())
    return (str(len(errors)), *(f"{error:.1f}" for error in found), f"{100 * (total - 1):+.1f}")
