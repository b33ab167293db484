"""Oracles among the plug-ins (testbed/core/oracle_protocols.py), and the true lengths that they
get.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from testbed.core.oracle_protocols import LENGTHS, OutputLengths
from testbed.memory.protocols import ForeseesChains
from testbed.run.constructor_parameters import parameters_of
from testbed.run.parts import Part


def is_oracle(make: Callable[..., Any]) -> bool:
    """True if a class, or a function that makes an object, has a parameter `lengths`."""
    while isinstance(make, partial):
        if LENGTHS in make.keywords:
            return False
        make = make.func
    return LENGTHS in parameters_of(make).hints


def with_lengths(make: Callable[..., Any], lengths: OutputLengths) -> Callable[..., Any]:
    """The same function, which gives an oracle these lengths."""
    return partial(make, lengths=lengths) if is_oracle(make) else make


def future_read(**parts: Part) -> str | None:
    """Values of the future that these parts of a config read, in words; None if none is an
    oracle.
    """
    read = []
    for group, part in parts.items():
        if is_oracle(part.maker(group)):
            read.append(f"{group}: true output lengths")
        eviction = part.parameters.get("eviction")
        if isinstance(eviction, Part):
            order = eviction.maker("eviction")
            if isinstance(order, type) and issubclass(order, ForeseesChains):
                read.append(f"{group}.eviction: the prompts to come")
    return "; ".join(read) or None
