"""`testbed compile`: compiles the simulator, so that all that imports it runs faster; `--remove` takes that back."""

from experiments.commands.arguments import Parser
from experiments.compiled.build import build, remove


def main(argv: list[str]) -> None:
    """Build or remove, and say so."""
    this = Parser(
        prog="testbed compile",
        description="Compile the simulator with mypyc: the same results and run ids, faster. Takes minutes.",
    )
    this.add_argument("--remove", action="store_true", help="take the build away: the sources run again")
    if this.parse_args(argv).remove:
        print("the compiled build is gone" if remove() else "there is no compiled build")
    else:
        print(f"{build()} modules are compiled, and used from now on until one of them changes")
