"""Oracles: plug-ins that read true output lengths, which no real server knows, to compare with.

An oracle takes them as a constructor argument of the name `lengths`: a mapping from request id to
output length in tokens, which the engine fills as requests arrive. Whoever builds it passes them;
no other object receives or can reach them.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

OutputLengths: TypeAlias = Mapping[int, int]
LENGTHS = "lengths"


def is_oracle(make: Callable[..., Any]) -> bool:
    """Whether a class, or a function that makes an object, has a parameter `lengths`."""
    while isinstance(make, partial):
        if LENGTHS in make.keywords:
            return False
        make = make.func
    constructors = make.__mro__[:-1] if inspect.isclass(make) else (make,)
    for constructor in constructors:
        if constructor is not make and "__init__" not in vars(constructor):
            continue
        try:
            parameters = inspect.signature(constructor).parameters
        except (TypeError, ValueError):  # a class written in C has no signature
            return False
        if LENGTHS in parameters:
            return True
        if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            return False
    return False


def with_lengths(make: Callable[..., Any], lengths: OutputLengths) -> Callable[..., Any]:
    """The same function, which gives an oracle these lengths."""
    return partial(make, lengths=lengths) if is_oracle(make) else make
