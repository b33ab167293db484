"""Measured latencies of static batches, read from a CSV, and their predictions."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from testbed.core.errors import InputError
from testbed.experiments.real.validation import batches

SHAPE = ["num_layers", "num_heads", "head_size", "vocab_size"]
COLUMNS = ["model", "tensor_parallel", "batch_size", "input_len", "output_len"]
DEFAULTS = {"tensor_parallel": 1, "beam_width": 1, "device": ""}
# Seconds per layer beyond kernels and all-reduces, by number of GPUs: the medians of what decode
# steps of FasterTransformer's tables take beyond their cost.
LAYER_S = {2: 55.3e-6, 4: 83.7e-6, 8: 85.3e-6}
DENSE_GPTS = Path(batches.__file__).with_name("dense_gpt_96.csv")


def predicted(table: pd.DataFrame, kernels: Path | None, shapes: Path | None) -> pd.DataFrame:
    """The table of latencies with predictions.

    kernels: AIConfigurator's folder of the GPU; None for FasterTransformer's costs in the paper's
    figures. shapes: a CSV of models.
    """
    costs: batches.CostOf = batches.figures
    if kernels is not None:
        dense = pd.read_csv(DENSE_GPTS)
        tables = [dense.drop_duplicates("model")]
        if shapes is not None:
            tables.insert(0, read(shapes, ["model", *SHAPE]))
            defaults = {name: DEFAULTS[name] for name in ("beam_width", "device")}
            table = pd.concat([table, dense.assign(**defaults)])
        costs = batches.costs(kernels, batches.dense_gpts(pd.concat(tables)), LAYER_S)
    return batches.with_predictions(table.reset_index(drop=True), costs)


def as_csv(table: pd.DataFrame) -> str:
    """The predictions of all rows as CSV, including rows without a latency."""
    first = table.columns.get_loc("predicted_ms")
    names = [*COLUMNS, "beam_width", "device", "latency_ms", *table.columns[first:]]
    kept = table[names].drop(columns="is_decoding")
    return str(kept.round(4).to_csv(index=False))


def latencies(path: Path) -> pd.DataFrame:
    """A row for each batch with its latency in ms, the mean if it was timed several times."""
    table = read(path, [])
    if "latency_ms" not in table and "latency_s" in table:
        table["latency_ms"] = 1000 * table["latency_s"]
    table = table.assign(**{name: value for name, value in DEFAULTS.items() if name not in table})
    check(path, table, [*COLUMNS, "latency_ms"])
    for name in (*COLUMNS[1:], "beam_width", "latency_ms"):
        numbers = _positive(path, name, table[name])
        table[name] = numbers if name == "latency_ms" else numbers.astype(int)
    if table.empty:
        raise InputError(key=path, problem="has no batch")
    fields = [*COLUMNS, "beam_width", "device"]
    return table.groupby(fields, sort=False, as_index=False, dropna=False)["latency_ms"].mean()


def _positive(path: Path, name: str, column: pd.Series) -> pd.Series:
    """The column as numbers; raises InputError for one that is not above 0."""
    numbers = pd.to_numeric(column, errors="coerce")
    wrong = column[~(numbers > 0)]
    if len(wrong):
        raise InputError(
            key=f"{path}: {name}", value=repr(wrong.iloc[0]), problem="must be a number above 0"
        )
    return numbers


def read(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """The table in a CSV; raises InputError if one of these columns is missing."""
    if not path.is_file():
        raise InputError(
            key=path,
            problem="no such file",
            remedy=f"give a CSV with {', '.join(columns or COLUMNS)}",
        )
    table = pd.read_csv(path)
    check(path, table, columns)
    return table


def check(path: Path, table: pd.DataFrame, columns: Sequence[str]) -> None:
    """Raise InputError unless the table has these columns."""
    missing = [name for name in columns if name not in table]
    if missing:
        raise InputError(
            key=path, problem=f"no column {missing[0]!r}; it has {', '.join(table.columns)}"
        )
