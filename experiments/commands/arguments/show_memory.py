"""Arguments of `testbed show-memory`."""

from pathlib import Path

from experiments.commands.arguments import Parser, seconds

NAME = "memory_map"


def parser() -> Parser:
    """The arguments."""
    parser = Parser(
        prog="testbed show-memory",
        description="Simulate the run of a folder again, watching its policy, and draw what it held.",
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="a folder that `testbed run` has left")
    parser.add_argument("--from", dest="start", metavar="S", type=seconds, default=0.0, help="draw from this second on")
    parser.add_argument("--to", dest="stop", metavar="S", type=seconds, help="draw up to this second; default: the end")
    parser.add_argument("--out", metavar="DIR", type=Path, help=f"write {NAME}.png, .pdf and .html here; default: RUN")
    return parser
