"""Arguments of `testbed check`."""

from experiments.commands.arguments import Parser


def parser() -> Parser:
    """The command's arguments."""
    this = Parser(
        prog="testbed check",
        description="Hold a memory policy to every clause of the contract, in pools of several sizes; print the first "
        "clause that breaks and the shortest sequence of calls that breaks it.",
    )
    this.add_argument("policy", metavar="MODULE:CLASS")
    this.add_argument("parameters", nargs="*", metavar="NAME=VALUE", help="parameters of the class besides its pool")
    this.add_argument("--slots", type=int, help="slots of the pool, instead of several sizes")
    this.add_argument("--max-len", type=int, help="the longest sequence in tokens")
    this.add_argument("--host-slots", type=int, help="slots of the host pool")
    this.add_argument("--examples", type=int, default=200, help="random histories in each pool (default: 200)")
    return this
