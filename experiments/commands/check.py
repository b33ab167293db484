"""`testbed check my_module:MyPolicy`: hold a memory policy to the contract."""

from functools import partial
from importlib import import_module
from typing import Any

import yaml

from experiments.commands.arguments.check import parser
from experiments.commands.fast_and_slow import differs
from testbed.contract import ClauseBroken, check_policy
from testbed.contract.search import POOLS, MakePolicy
from testbed.core.errors import InputError
from testbed.memory.policy import MemoryPolicy, PoolSpec, host


def main(argv: list[str]) -> int:
    """Print the verdict; exit code 1 where a clause is broken."""
    options = parser().parse_args(argv)
    make = partial(find(options.policy), **dict(map(parameter, options.parameters)))
    pools = chosen(options.slots, options.max_len, options.host_slots)
    broken = verdict(make, pools, options.examples)
    if broken is None:
        print(f"{options.policy} keeps the contract")
        return 0
    print(f"{options.policy} breaks the contract, {broken}", *broken.calls, sep="\n    ")
    return 1


def chosen(num_slots: int | None, max_len: int | None, host_slots: int | None) -> list[PoolSpec]:
    """The pools to try: those of the contract, with the sizes that were asked for instead of theirs."""
    for name, number, least in (("slots", num_slots, 1), ("max-len", max_len, 4), ("host-slots", host_slots, 0)):
        if number is not None and number < least:
            raise InputError(f"--{name} is {number}; it must be at least {least}")
    pools = [
        PoolSpec(
            pool.num_slots if num_slots is None else num_slots,
            pool.max_len if max_len is None else max_len,
            pool.tiers if host_slots is None else host(host_slots),
        )
        for pool in POOLS
    ]
    return list(dict.fromkeys(pools))


def verdict(make: MakePolicy, pools: list[PoolSpec], num_examples: int) -> ClauseBroken | None:
    """The first clause that breaks, in calls or in simulations."""
    for pool in pools:
        try:
            policy = make(pool)
        except (TypeError, ValueError) as error:
            raise InputError(f"it cannot be made for {pool}: {error}") from error
        if not isinstance(policy, MemoryPolicy):
            raise InputError(f"{type(policy).__name__} is no MemoryPolicy")
    return check_policy(make, pools, num_examples) or next(filter(None, (differs(make, pool) for pool in pools)), None)


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
