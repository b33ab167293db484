"""`testbed validate-batches`, `-costs`, `-pairs` and `-transfers`: predictions against kept
measurements.
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from testbed.core.errors import InputError
from testbed.cost.auto import profiles_at_hand
from testbed.cost.link_times import SECTION, read_transfers
from testbed.cost.sections import rows
from testbed.experiments.commands.terminal import FORMATS, plain_table, show
from testbed.experiments.importers.known_shapes import gpu_named
from testbed.experiments.runs.choice_names import ANY_SERVER
from testbed.experiments.runs.csv_tables import csv_text, read_csv_table
from testbed.experiments.runs.whole_files import write_text
from testbed.experiments.validation import batches, transfers
from testbed.experiments.validation.left_out import held_back, imported, tested

SHAPE = ["num_layers", "num_heads", "head_size", "vocab_size"]
COLUMNS = ["model", "tensor_parallel", "batch_size", "input_len", "output_len"]
DEFAULTS = {"tensor_parallel": 1, "beam_width": 1, "device": ""}
# Seconds per layer beyond kernels and all-reduces, by number of GPUs: the medians of what decode
# steps of FasterTransformer's tables take beyond their cost.
LAYER_S = {2: 55.3e-6, 4: 83.7e-6, 8: 85.3e-6}
HELD_BACK = ("kind", "section", "rows", "outside", "median", "p90")
HEAD = (
    "way",
    "predicted from",
    "GPUs",
    "profiles",
    "decodes",
    "prefills",
    "TTFT",
    "TPOT",
    "latency",
)
RUNS = Path("kernels/results/engine/swaps")
POINTS = ("way", "method", "points", "held back", "median error, %", "90th percentile, %")
MOVED = ("run", "way", "transfers", "GB", "GPU, ms", "by its extents, ms", "simulated, ms")


def validate_batches(options: Namespace) -> None:
    """Predict every row; print errors of decode steps and of whole batches, and the unmeasured
    parts.
    """
    table = latencies(options.latencies, options.values, options.device)
    shapes = options.models or options.latencies.with_name("models.csv")
    if options.kernels:
        dense = pd.read_csv(Path(batches.__file__).with_name("dense_gpt_96.csv"))
        known = [read(shapes, ["model", *SHAPE])] if options.models or shapes.is_file() else []
        models = batches.dense_gpts(pd.concat([*known, dense.drop_duplicates("model")]))
        costs = batches.costs(options.kernels, models, LAYER_S)
        if known:
            table = pd.concat(
                [table, dense.assign(**{name: DEFAULTS[name] for name in ("beam_width", "device")})]
            )
    else:
        costs = batches.figures
    table = batches.with_predictions(table.reset_index(drop=True), costs)
    show(*batches.report(table))
    if options.csv:
        kept = [
            *COLUMNS,
            "beam_width",
            "device",
            "latency_ms",
            *table.columns[table.columns.get_loc("predicted_ms") :],
        ]
        write_text(options.csv, csv_text(table[kept].drop(columns="is_decoding").round(4)))


def latencies(path: Path, values: Sequence[str], device: str | None) -> pd.DataFrame:
    """A row for each batch, with its milliseconds; of one that was timed several times, the
    mean.
    """
    table = read(path, [])
    for word in values:
        name, equals, value = word.partition("=")
        if not equals or name not in (*COLUMNS, *DEFAULTS) or name in table:
            raise InputError(
                f"{word}: not COLUMN=VALUE of a column that the file lacks ({', '.join(COLUMNS)})"
            )
        table[name] = value
    if "latency_ms" not in table and "latency_s" in table:
        table["latency_ms"] = 1000 * table["latency_s"]
    table = table.assign(**{name: value for name, value in DEFAULTS.items() if name not in table})
    check(path, table, [*COLUMNS, "latency_ms"])
    for name in (*COLUMNS[1:], "beam_width", "latency_ms"):
        numbers = pd.to_numeric(table[name], errors="coerce")
        if not (numbers > 0).all():
            raise InputError(
                f"{path}: {name} is {table[name][~(numbers > 0)].iloc[0]!r}; it must be a number "
                f"above 0"
            )
        table[name] = numbers if name == "latency_ms" else numbers.astype(int)
    if device is not None:
        table = table[table["device"].str.contains(device, regex=False)]
    if table.empty:
        raise InputError(
            f"{path}: no batch" + (f" of a card whose name has {device!r}" if device else "")
        )
    fields = [*COLUMNS, "beam_width", "device"]
    return table.groupby(fields, sort=False, as_index=False, dropna=False)["latency_ms"].mean()


def read(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """A CSV with these columns; raises InputError where one is missing."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a CSV with {', '.join(columns or COLUMNS)}")
    table = read_csv_table(path)
    check(path, table, columns)
    return table


def check(path: Path, table: pd.DataFrame, columns: Sequence[str]) -> None:
    """Each of these columns is there."""
    missing = [name for name in columns if name not in table]
    if missing:
        raise InputError(f"{path}: no column {missing[0]!r}; it has {', '.join(table.columns)}")


def validate_costs(options: Namespace) -> None:
    """Print the errors by way, and write every row."""
    if options.held_back:
        return _held_back(options.folders, options.held_back)

    shipped = list(profiles_at_hand(None, [gpu_named(ANY_SERVER)]))
    shards = [(one.loads.model.name, one.loads.num_gpus) for one in shipped]
    known = shipped + [one for folder in options.folders for one in imported(folder, shards)]
    table = pd.DataFrame(tested(known, known)).fillna("")
    if options.out:
        write_text(options.out, csv_text(table))
    head = "each profile left out and predicted from the others: median error in percent (largest)"
    show(head, plain_table(HEAD, by_way(table)))


def _held_back(folders: list[Path], every: int) -> None:
    if len(folders) != 1 or every < 2:
        raise InputError(
            "--held-back: takes one folder of AIConfigurator's, and at least 2; 5 is every fifth "
            "row"
        )
    cells = []
    for names, group in pd.DataFrame(held_back(folders[0], every)).groupby(["kind", "section"]):
        off = 100 * group["error"].dropna().abs()
        percents = (f"{off.median():.1f}%", f"{off.quantile(0.9):.1f}%")
        cells.append([*map(str, names), f"{len(off):,}", f"{len(group) - len(off):,}", *percents])
    show(plain_table(HELD_BACK, cells))


def by_way(table: pd.DataFrame) -> Iterator[list[str]]:
    """A line for each way, for the makers of the profiles that it starts from, and for one GPU and
    several.
    """
    makers = table["source_by"].replace({"measured": "ours", "": "a data sheet"})
    several = table["num_gpus"].gt(1).map({False: "one", True: "several"})
    for names, group in table.groupby([table["way"], makers, several]):
        errors = group[
            [name for name in group if name.endswith("_percent") and "p90" not in name]
        ].abs()
        cells = [f"{errors[name].median():.1f} ({errors[name].max():.1f})" for name in errors]
        yield [*map(str, names), f"{len(group)}", *cells]


def validate_pairs(options: Namespace) -> None:
    """Simulate every pair, and print the tables in Markdown."""
    if options.figure and options.figure.suffix not in FORMATS:
        raise InputError(f"--figure {options.figure}: must end in {', '.join(FORMATS)}")
    from testbed.experiments.validation.pairs import draw, section, simulated
    from testbed.kernels.engine.pairs.plan import device

    pairs = simulated(options.runs, options.profile, device(), options.out)
    print(section(pairs))
    if options.figure:
        draw(pairs, options.figure)


def validate_transfers(options: Namespace) -> None:
    """Print both tables."""
    gpu = gpu_named(options.gpu)
    if gpu.transfers is None:
        raise InputError(
            f"--gpu {gpu.name}: names no measured transfers (testbed measure transfers)"
        )
    points = rows(read_transfers(gpu), SECTION)
    show(plain_table(POINTS, transfers.by_method(points)))
    if options.figure:
        transfers.draw(points, options.figure)
    runs = options.runs or sorted(path.parent for path in RUNS.glob("*/swaps.csv"))
    lines = [
        line
        for folder in runs
        for line in transfers.engine_transfers(folder, trusts_plug_ins=options.trust_plug_ins)
    ]
    show(plain_table(MOVED, lines))
