"""`testbed check my_module:MyPolicy`: hold a memory policy to the contract."""

from functools import partial
from importlib import import_module
from typing import Any

import yaml

from experiments.commands.arguments import Parser
from testbed.core.errors import InputError
from testbed.memory.policy import PoolSpec, host

POOL = PoolSpec(num_slots=600, max_len=256, tiers=host(300))


def main(argv: list[str]) -> int:
    """Print the verdict; exit code 1 where a clause is broken."""
    this = Parser(
        prog="testbed check",
        description="Hold a memory policy to every clause of the contract; print the clause that breaks and the "
        "shortest sequence of calls that breaks it. Needs hypothesis.",
    )
    this.add_argument("policy", metavar="MODULE:CLASS")
    this.add_argument("parameters", nargs="*", metavar="NAME=VALUE", help="parameters of the class besides its pool")
    options = this.parse_args(argv)
    try:
        from testbed.contract import check_policy
    except ImportError as error:
        raise InputError(f"testbed check needs {error.name}; pip install {error.name}") from error
    broken = check_policy(partial(find(options.policy), POOL, **dict(map(parameter, options.parameters))))
    if broken is None:
        print(f"{options.policy} keeps the contract")
        return 0
    print(f"{options.policy} breaks the contract, {broken}", *broken.calls, sep="\n    ")
    return 1


def find(name: str) -> Any:
    """The class that module:class or module.class names."""
    module, _, attribute = name.replace(":", ".").rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except (Exception, SystemExit) as error:
        raise InputError(f"no class {name!r}: {error}; give MODULE:CLASS") from error


def parameter(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as YAML reads it."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InputError(f"{text!r} is not NAME=VALUE")
    return name, yaml.safe_load(value)
