"""Arguments of `testbed report`."""

from pathlib import Path

from experiments.commands.arguments import Parser


def parser() -> Parser:
    """The command's arguments."""
    this = Parser(
        prog="testbed report", description="Figures, tables, scorecard, configurations and profiles on one HTML page."
    )
    this.add_argument("folders", nargs="+", type=Path, metavar="FOLDER",
                      help="of `testbed reproduce`, of runs, or of one run")  # fmt: skip
    this.add_argument("--out", type=Path, metavar="FILE", help="default: report.html in the first folder")
    return this
