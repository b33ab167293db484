"""`testbed validate-batches`: predicts static batches, such as FasterTransformer's, from measured kernels."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.core.errors import InputError
from testbed.experiments.commands.parser import Parser
from testbed.experiments.runs.whole_files import write_text

if TYPE_CHECKING:
    import pandas as pd

SHAPE = ["num_layers", "num_heads", "head_size", "vocab_size"]
COLUMNS = ["model", "tensor_parallel", "batch_size", "input_len", "output_len"]
DEFAULTS = {"tensor_parallel": 1, "beam_width": 1, "device": ""}
# Seconds per layer beyond kernels and all-reduces, by number of GPUs: the medians of what decode steps of
# FasterTransformer's tables take beyond their cost.
LAYER_S = {2: 55.3e-6, 4: 83.7e-6, 8: 85.3e-6}


def parser() -> Parser:
    this = Parser("validate-batches", "Latencies of static batches against measured kernels.")
    this.add_argument("latencies", type=Path, metavar="LATENCY.csv", help="a row per batch: " + ", ".join(COLUMNS)
                      + ", latency_ms or latency_s; also beam_width, device (as its driver names it)")  # fmt: skip
    this.add_argument("values", nargs="*", metavar="COLUMN=VALUE", help="of a column that the file does not have")
    this.add_argument("--kernels", type=Path, metavar="FOLDER", help="AIConfigurator's folder of the GPU, such as "
                      "systems/data/a100_sxm (default: FasterTransformer's costs in the figures)")  # fmt: skip
    this.add_argument("--models", type=Path, metavar="FILE", help="shapes: model, " + ", ".join(SHAPE)
                      + " (default: models.csv in the latencies' folder, if it exists)")  # fmt: skip
    this.add_argument("--device", metavar="TEXT", help="only batches of cards whose name has it")
    this.add_argument("--csv", type=Path, metavar="OUT", help="write predictions of all rows, also without latency")
    return this


def main(argv: list[str]) -> None:
    """Predict every row; print errors of decode steps and of whole batches, and the unmeasured parts."""
    options = parser().parse_args(argv)
    import pandas as pd

    from testbed.experiments.commands.console import wide_console
    from testbed.experiments.validation import a100_kernels
    from testbed.experiments.validation.batches import report, with_predictions

    table = latencies(options.latencies, options.values, options.device)
    shapes = options.models or options.latencies.with_name("models.csv")
    if options.kernels:
        dense = pd.read_csv(Path(a100_kernels.__file__).with_name("dense_gpt_96.csv"))
        known = [read(shapes, ["model", *SHAPE])] if options.models or shapes.is_file() else []
        models = a100_kernels.dense_gpts(pd.concat([*known, dense.drop_duplicates("model")]))
        costs = a100_kernels.costs(options.kernels, models, LAYER_S)
        if known:
            table = pd.concat([table, dense.assign(**{name: DEFAULTS[name] for name in ("beam_width", "device")})])
    else:
        costs = a100_kernels.figures()
    table = with_predictions(table.reset_index(drop=True), costs)
    console = wide_console()
    for line in report(table):
        console.print(line)
    if options.csv:
        kept = [*COLUMNS, "beam_width", "device", "latency_ms", *table.columns[table.columns.get_loc("predicted_ms") :]]
        write_text(options.csv, table[kept].drop(columns="is_decoding").round(4).to_csv(index=False))


def latencies(path: Path, values: Sequence[str], device: str | None) -> "pd.DataFrame":
    """A row for each batch, with its milliseconds; of one that was timed several times, the mean."""
    import pandas as pd

    table = read(path, [])
    for word in values:
        name, equals, value = word.partition("=")
        if not equals or name not in (*COLUMNS, *DEFAULTS) or name in table:
            raise InputError(f"{word}: not COLUMN=VALUE of a column that the file lacks ({', '.join(COLUMNS)})")
        table[name] = value
    if "latency_ms" not in table and "latency_s" in table:
        table["latency_ms"] = 1000 * table["latency_s"]
    table = table.assign(**{name: value for name, value in DEFAULTS.items() if name not in table})
    check(path, table, [*COLUMNS, "latency_ms"])
    for name in (*COLUMNS[1:], "beam_width", "latency_ms"):
        numbers = pd.to_numeric(table[name], errors="coerce")
        if not (numbers > 0).all():
            raise InputError(f"{path}: {name} is {table[name][~(numbers > 0)].iloc[0]!r}; it must be a number above 0")
        table[name] = numbers if name == "latency_ms" else numbers.astype(int)
    if device is not None:
        table = table[table["device"].str.contains(device, regex=False)]
    if table.empty:
        raise InputError(f"{path}: no batch" + (f" of a card whose name has {device!r}" if device else ""))
    fields = [*COLUMNS, "beam_width", "device"]
    return table.groupby(fields, sort=False, as_index=False, dropna=False)["latency_ms"].mean()


def read(path: Path, columns: Sequence[str]) -> "pd.DataFrame":
    """A CSV with these columns; raises InputError where one is missing."""
    import pandas as pd

    if not path.is_file():
        raise InputError(f"{path}: no such file; give a CSV with {', '.join(columns or COLUMNS)}")
    table = pd.read_csv(path)
    check(path, table, columns)
    return table


def check(path: Path, table: "pd.DataFrame", columns: Sequence[str]) -> None:
    """Each of these columns is there."""
    missing = [name for name in columns if name not in table]
    if missing:
        raise InputError(f"{path}: no column {missing[0]!r}; it has {', '.join(table.columns)}")
