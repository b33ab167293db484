"""`testbed validate-batches`: latencies of static batches, such as FasterTransformer's, against measured kernels."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.commands.arguments.validate_batches import COLUMNS, SHAPE, parser
from experiments.commands.console import wide_console
from experiments.runs.whole_files import write_text
from experiments.validation import a100_kernels
from experiments.validation.batches import (
    LARGEST_BATCH,
    Batch,
    Predicted,
    Step,
    median_error,
    missing_layer_s,
    predict,
    share_within,
    steps,
)
from testbed.core.errors import InputError

# Seconds a layer on so many GPUs, beyond kernels and all-reduces: what --fit finds in FasterTransformer's tables.
LAYER_S = {2: 55.3e-6, 4: 83.7e-6, 8: 85.3e-6}
UNMEASURED = Path(a100_kernels.__file__).with_name("dense_gpt_96.csv")


def main(argv: list[str]) -> None:
    """Predict every row; print errors of decode steps and of whole batches, and what nobody has measured."""
    options = parser().parse_args(argv)
    beside = pd.read_csv(UNMEASURED)
    table = read(options.latencies, COLUMNS)
    shapes = read(options.models or options.latencies.with_name("models.csv"), ["model", *SHAPE])
    models = a100_kernels.dense_gpts(pd.concat([shapes, beside.drop_duplicates("model")]))
    prices = a100_kernels.prices(
        options.kernels, models, {degree: 0.0 for degree in LAYER_S} if options.fit else LAYER_S
    )
    measured = dict(zip(batches(table), table["latency_ms"].astype(float), strict=True))
    predicted = {batch: predict(prices(batch), batch) for batch in [*measured, *batches(beside)]}
    found = steps(measured, predicted)
    console = wide_console()
    if options.fit:
        told = missing_layer_s(found, {name: model.num_layers for name, model in models.items()})
        for degree, seconds in told.items():
            console.print(
                f"{degree} GPUs: {seconds * 1e6:.1f} us a layer beyond kernels and all-reduces", highlight=False
            )
        return
    for line in report(measured, predicted, found):
        console.print(line, highlight=False)
    if options.csv:
        write_text(options.csv, as_table(measured, predicted, found).to_csv(index=False))


def read(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """A CSV that has these columns."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a CSV with {', '.join(columns)}")
    table = pd.read_csv(path)
    missing = [name for name in columns if name not in table]
    if missing:
        raise InputError(f"{path}: no column {missing[0]!r}; it has {', '.join(table.columns)}")
    return table


def batches(table: pd.DataFrame) -> list[Batch]:
    """The batch of each row."""
    return [Batch(str(name), *map(int, row)) for name, *row in table[list(Batch._fields)].itertuples(index=False)]


def report(measured: Mapping[Batch, float], predicted: Mapping[Batch, Predicted], found: Sequence[Step]) -> list[str]:
    """Errors by model and number of GPUs, worst rows, and rows without a measurement."""
    judged = [step for step in found if step.batch.batch_size <= LARGEST_BATCH]
    errors = {batch: predicted[batch].total_ms / ms - 1 for batch, ms in measured.items()}
    same = sum(step.batch.input_len == step.shorter.input_len for step in judged)
    lines = [
        f"decode steps, batch up to {LARGEST_BATCH}: {len(judged)} differences of rows, {same} of them of equal "
        "prompts; of the others the difference of prompts is taken off as priced",
        *by_kind("  step, prompts differ by less than outputs", {s.batch: s.error for s in judged if s.is_decoding}),
        *by_kind("  step, prompts differ by more", {s.batch: s.error for s in judged if not s.is_decoding}),
        f"  all steps: median {median_error([s.error for s in judged]):.1%}",
        *by_kind("whole batch", errors),
        f"all {len(errors)} batches: median {median_error(list(errors.values())):.1%}, "
        f"{share_within(list(errors.values())):.1%} within 20%",
    ]
    far = sorted((error, batch) for batch, error in errors.items() if abs(error) > 0.2)
    lines += [f"  beyond 20%: {named(batch)}: {error:+.0%}" for error, batch in far]
    unseen = [batch for batch in predicted if batch not in measured]
    return lines + [f"not measured: {named(batch)}: {predicted[batch].total_ms:.0f} ms" for batch in unseen]


def by_kind(what: str, errors: Mapping[Batch, float]) -> list[str]:
    """A line for each model and number of GPUs."""
    kinds = dict.fromkeys((batch.model, batch.tensor_parallel) for batch in errors)
    lines = []
    for model, degree in kinds:
        of = [error for batch, error in errors.items() if batch[:2] == (model, degree)]
        told = f"median {median_error(of):.1%}, {min(of):+.0%} to {max(of):+.0%}"
        lines.append(f"{what}, {model} on {degree}: {told} ({len(of)} rows)")
    return lines


def named(batch: Batch) -> str:
    """The batch for people."""
    where = f"{batch.model} on {batch.tensor_parallel}"
    return f"{where}, batch {batch.batch_size}, {batch.input_len} + {batch.output_len} tokens"


def as_table(
    measured: Mapping[Batch, float], predicted: Mapping[Batch, Predicted], found: Sequence[Step]
) -> pd.DataFrame:
    """A row for each batch; its decode step where it has a partner."""
    of = {step.batch: step for step in found}
    rows: list[dict[str, Any]] = []
    for batch, price in predicted.items():
        ms, step = measured.get(batch), of.get(batch)
        whole = {"latency_ms": ms, "predicted_ms": price.total_ms, "predicted_prompts_ms": price.prompts_ms}
        whole["error"] = None if ms is None else price.total_ms / ms - 1
        less = {} if step is None else {"step_ms": step.measured_ms, "predicted_step_ms": step.predicted_ms}
        rows.append({**batch._asdict(), **whole, **less})
    return pd.DataFrame(rows).round(4)
