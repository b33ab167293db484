"""Arguments of `testbed timeline`."""

from pathlib import Path

from experiments.commands.arguments import Parser, seconds

NAME = "timeline.json"


def parser() -> Parser:
    """The command's arguments."""
    this = Parser(
        prog="testbed timeline",
        description="Simulate the run of a folder again, and write what every request, the GPU and the pool did.",
    )
    this.add_argument("run", metavar="RUN", type=Path, help="a folder that `testbed run` has left")
    this.add_argument("--from", dest="start", metavar="S", type=seconds, default=0.0, help="from this second on")
    this.add_argument("--to", dest="stop", metavar="S", type=seconds, help="up to this second; default: the end")
    this.add_argument("--out", metavar="FILE", type=Path, help=f"default: RUN/{NAME}")
    return this
