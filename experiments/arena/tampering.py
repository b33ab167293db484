"""Checks if a plug-in has replaced functions of this package: a run measures by them."""

import sys
import time
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

CLOCKS = ("time", "perf_counter", "monotonic", "process_time")


def code_of_testbed() -> dict[str, int]:
    """The identity of the code of every function and method of the imported modules of this
    package, and of Python's clocks, by name.
    """
    modules = [module for name, module in [*sys.modules.items()] if name.startswith("testbed.")]
    code = {f"time.{name}": id(getattr(time, name)) for name in CLOCKS}
    for module in modules:
        code |= dict(_functions(module))
    return code


def changed_code(before: Mapping[str, int]) -> str:
    """The first function that is not as before, or an empty text; new ones do not count."""
    now = code_of_testbed()
    return next((name for name, code in before.items() if now.get(name) != code), "")


def _functions(module: ModuleType) -> Iterator[tuple[str, int]]:
    for name, value in [*vars(module).items()]:
        place = f"{module.__name__}.{name}"
        if isinstance(value, type) and value.__module__ == module.__name__:
            for method, own in [*vars(value).items()]:
                yield from _code(f"{place}.{method}", own)
        else:
            yield from _code(place, value)


def _code(name: str, value: Any) -> Iterator[tuple[str, int]]:
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    if isinstance(value, FunctionType):
        yield name, id(value.__code__)
