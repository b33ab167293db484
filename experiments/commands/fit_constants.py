"""`testbed fit-constants`: divides a plain request's software time between requests, sequences and forks."""

from pathlib import Path

from testbed.experiments.commands.parser import Parser


def parser() -> Parser:
    this = Parser("fit-constants", "Divides the software time of a plain request of the 2023 system, and prints it.")
    this.add_argument("kind", choices=["sampler"], help="by the times of the 2023 system's sampler")
    this.add_argument("rows", type=Path, nargs="?", help="output of testbed measure sampler (default: the kept rows)")
    return this


def main(argv: list[str]) -> None:
    """Print the constants as lines for the YAML."""
    options = parser().parse_args(argv)
    from testbed.experiments.paper.sampler_fit import report  # imported late: help does not need it

    print("\n".join(report(options.rows)))
