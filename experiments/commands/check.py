"""`testbed check my_module:MyPolicy`: checks a memory policy, a scheduler or a cost model against the contract."""

from typing import Any

from testbed.core.errors import InputError
from testbed.experiments.commands.parser import Parser


def main(argv: list[str]) -> int:
    """Print the result; returns 1 where a clause is violated."""
    this = Parser(
        "check",
        "Checks a memory policy against every clause of the contract, in pools of several sizes; prints the first "
        "violated clause and the shortest sequence of calls that violates it. A scheduler is simulated and every plan "
        "compared with its outcome; a cost model computes costs in spans and one by one.",
    )
    this.add_argument("plug_in", metavar="MODULE:CLASS")
    this.add_argument("parameters", nargs="*", metavar="NAME=VALUE", help="parameters of the class, without its pool")
    this.add_argument("--slots", type=int, help="slots of a single pool")
    this.add_argument("--max-len", type=int, help="the longest sequence in tokens")
    this.add_argument("--host-slots", type=int, help="slots of the host pool")
    this.add_argument("--examples", type=int, default=200, help="random histories in each pool (default: 200)")
    options = this.parse_args(argv)
    parameters = dict(map(parameter, options.parameters))
    from testbed.checking import check
    from testbed.experiments.runs.progress import spoken

    with spoken(lambda: f"checking {options.plug_in}"):
        broken = check(
            options.plug_in, num_slots=options.slots, max_len=options.max_len, host_slots=options.host_slots,
            num_examples=options.examples, **parameters,
        )  # fmt: skip
    if broken is None:
        print(f"{options.plug_in} keeps the contract")
        return 0
    print(f"{options.plug_in} breaks the contract, {broken}", *broken.calls, sep="\n    ")
    return 1


def parameter(text: str) -> tuple[str, Any]:
    """NAME=VALUE, with the value parsed as YAML."""
    import yaml

    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InputError(f"{text!r} is not NAME=VALUE")
    return name, yaml.safe_load(value)
