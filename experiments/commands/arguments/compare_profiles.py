"""Arguments of `testbed compare-profiles`."""

from experiments.commands.arguments import Parser


def parser() -> Parser:
    """The command's arguments."""
    this = Parser(
        prog="testbed compare-profiles",
        description="How far one profile is off another of the same model, section by section.",
    )
    this.add_argument("first", metavar="PROFILE", help="a profile JSON, or the name of one that ships")
    this.add_argument("second", metavar="REFERENCE", help="the one that it is held against, at whose shapes")
    return this
