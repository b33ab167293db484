"""Arguments of `testbed compare`."""

from pathlib import Path

from experiments.commands.arguments import Parser


def parser() -> Parser:
    """The arguments."""
    this = Parser(prog="testbed compare", description="Finished runs side by side, simulated or on a GPU.")
    this.add_argument("runs", nargs="+", metavar="[NAME=]RUN", help="run folders; errors are against the first")
    this.add_argument("--csv", type=Path, metavar="OUT", help="a line for each number and run")
    this.add_argument("--html", type=Path, metavar="OUT", help="one page with curves and tables")
    this.add_argument("--figure", type=Path, metavar="OUT", help="the curves over each other: .png, .pdf or .svg")
    return this
