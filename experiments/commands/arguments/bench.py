"""Arguments of `testbed bench`."""

from experiments.commands.arguments import Parser, at_least_one


def parser() -> Parser:
    """The command's arguments."""
    this = Parser(
        prog="testbed bench",
        description="How fast the simulator is, on one core, with all records kept in memory.",
    )
    this.add_argument("--lengths", metavar="FILE", help="ShareGPT length file; default: the embedded model")
    this.add_argument("--repeats", type=at_least_one, default=3, metavar="N", help="keep the fastest of N (default 3)")
    this.add_argument("--requests", type=at_least_one, default=1_000_000, metavar="N", help="of the long run")
    return this
