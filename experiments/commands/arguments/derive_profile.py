"""Arguments of `testbed derive-profile`."""

from pathlib import Path

from experiments.commands.arguments import Parser
from experiments.runs.known_choices import files_of


def parser() -> Parser:
    """The command's arguments."""
    this = Parser(prog="testbed derive-profile", description="Carry a measured profile to another GPU's data sheet.")
    this.add_argument("--from", dest="source", required=True, metavar="PROFILE", help="a JSON file, or a shipped name")
    this.add_argument("--to", required=True, metavar="GPU", help=", ".join(sorted(files_of("gpu"))))
    this.add_argument("--source-gpu", default="h200", metavar="GPU", help="the one that was measured (default: h200)")
    this.add_argument("--out", type=Path, metavar="FILE", help="default: the profile's name with the new GPU in front")
    this.add_argument("--attainable", type=float, metavar="SHARE", help="of the new GPU's memory bandwidth, if it is "
                      "known (A100: 0.86); default: the share that the measured GPU reached")  # fmt: skip
    return this
