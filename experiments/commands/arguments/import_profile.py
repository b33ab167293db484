"""Arguments of `testbed import-profile`."""

from pathlib import Path

from experiments.commands.arguments import Parser, at_least_one


def parser() -> Parser:
    """The command's arguments."""
    this = Parser(
        prog="testbed import-profile",
        description="Layer times that somebody else measured, as a profile of ours.",
    )
    this.add_argument("source", type=Path, metavar="FOLDER", help="a folder of LLMServingSim's or AIConfigurator's, "
                      "or a profile of our own")  # fmt: skip
    this.add_argument("--out", type=Path, required=True, metavar="FILE", help="profile JSON to write")
    this.add_argument("--model", metavar="NAME", help="a model's name, or its config.json; if the source does not say")
    this.add_argument("--gpu", metavar="NAME", help="a GPU's name, or a data sheet as JSON; if the source does not say")
    this.add_argument("--tensor-parallel", type=at_least_one, metavar="N", help="GPUs; if the source does not say")
    return this
