"""Which plug-ins are oracles, and how they get true output lengths (testbed/core/oracles.py)."""

from collections.abc import Callable
from functools import partial
from typing import Any

from testbed.core.oracles import LENGTHS, OutputLengths
from testbed.parts import parameters_of


def is_oracle(make: Callable[..., Any]) -> bool:
    """Whether a class, or a function that makes an object, has a parameter `lengths`."""
    while isinstance(make, partial):
        if LENGTHS in make.keywords:
            return False
        make = make.func
    return LENGTHS in (parameters_of(make) or {})


def with_lengths(make: Callable[..., Any], lengths: OutputLengths) -> Callable[..., Any]:
    """The same function, which gives an oracle these lengths."""
    return partial(make, lengths=lengths) if is_oracle(make) else make
