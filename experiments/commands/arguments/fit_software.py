"""Arguments of `testbed fit-software`."""

from pathlib import Path

from experiments.commands.arguments import Parser
from experiments.validation.software_times import NAMES


def parser() -> Parser:
    """The arguments; logs and KEY=VALUE as in validate."""
    this = Parser(
        prog="testbed fit-software",
        description="Software times of an iteration, a request and a scheduled token, from logs of a server.",
    )
    this.add_argument("arguments", nargs="+", metavar="LOG | KEY=VALUE", help="as in testbed validate")
    this.add_argument("--workload", metavar="FILE", help="the prompts' token ids, line by line as in the log")
    this.add_argument("--times", default=",".join(NAMES), metavar="NAMES", help="which to fit (default: %(default)s)")
    this.add_argument("--out", type=Path, metavar="FILE", help="write the profile with these times in it")
    return this
