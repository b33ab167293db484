"""`testbed validate-transfers`: tests measured transfers on held-back points and on those of the GPU engine."""

from pathlib import Path

from testbed.experiments.commands.parser import Parser

RUNS = Path("kernels/results/engine/swaps")
POINTS = ("way", "method", "points", "held back", "median error, %", "90th percentile, %")
MOVED = ("run", "way", "transfers", "GB", "GPU, ms", "by its extents, ms", "simulated, ms")


def main(argv: list[str]) -> None:
    """Print both tables."""
    this = Parser("validate-transfers", "Predicts every fifth measured transfer from the others, and compares the "
                  "swaps, stores and loads of runs on a GPU with the table and with their simulation.")  # fmt: skip
    this.add_argument("--gpu", default="h200", help="a GPU whose spec names measured transfers (default: h200)")
    this.add_argument("runs", nargs="*", type=Path, metavar="RUN", help=f"run folders (default: those in {RUNS})")
    this.add_argument("--figure", type=Path, metavar="FILE", help="draw GB/s by the bytes of an extent")
    options = this.parse_args(argv)
    from testbed.core.errors import InputError
    from testbed.cost.link_times import SECTION, read_transfers
    from testbed.cost.sections import rows
    from testbed.experiments.commands.console import plain_table, wide_console
    from testbed.experiments.importers.known_shapes import gpu_named
    from testbed.experiments.validation.transfers import by_method, draw, engine_transfers

    gpu, console = gpu_named(options.gpu), wide_console()
    if gpu.transfers is None:
        raise InputError(f"--gpu {gpu.name}: names no measured transfers (testbed measure transfers)")
    points = rows(read_transfers(gpu), SECTION)
    console.print(plain_table(POINTS, by_method(points)))
    if options.figure:
        draw(points, options.figure)
    runs = options.runs or sorted(path.parent for path in RUNS.glob("*/swaps.csv"))
    console.print(plain_table(MOVED, [line for folder in runs for line in engine_transfers(folder)]))
