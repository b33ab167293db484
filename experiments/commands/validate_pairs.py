"""`testbed validate-pairs`: compares runs on a GPU with their simulations, as tables; it needs no GPU."""

from pathlib import Path

from testbed.experiments.commands.parser import Parser

RESULTS = Path("kernels/results")


def parser() -> Parser:
    this = Parser("validate-pairs", "Compares runs on a GPU with their simulations, as tables.")
    this.add_argument("--runs", type=Path, default=RESULTS / "engine" / "pairs")
    this.add_argument("--profiles", type=Path, default=RESULTS / "engine" / "profiles", help="the engine's profiles")
    this.add_argument("--out", type=Path, help="folder for the simulated runs; default: none")
    return this


def main(argv: list[str]) -> None:
    """Simulate every pair, and print the tables in Markdown."""
    options = parser().parse_args(argv)
    from testbed.experiments.validation.pairs import section, simulated

    print(section(simulated(options.runs, options.profiles, options.out)))
