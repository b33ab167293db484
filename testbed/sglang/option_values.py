"""The numbers of a command's options."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from testbed.core.errors import InputError
from testbed.sglang.command import SERVE

T = TypeVar("T")


def number(values: Mapping[str, str], name: str) -> int | None:
    """The whole number of an option; None if it is not given."""
    return _parsed(values, name, int, "is no whole number", "give one")


def whole(values: Mapping[str, str], name: str) -> int | None:
    """The whole number of an option that must be above 0."""
    count = number(values, name)
    if count is not None and count < 1:
        raise refusal(values, name, "must be above 0")
    return count


def decimal(values: Mapping[str, str], name: str) -> float | None:
    """The number of an option; None if it is not given."""
    return _parsed(values, name, float, "is no number", "give one")


def _parsed(
    values: Mapping[str, str], name: str, read: Callable[[str], T], problem: str, remedy: str
) -> T | None:
    if name not in values:
        return None
    try:
        return read(values[name])
    except ValueError:
        raise refusal(values, name, problem, remedy) from None


def refusal(values: Mapping[str, str], name: str, problem: str, remedy: str = "") -> InputError:
    """The refusal of an option's value."""
    return InputError(key=f"{SERVE}: {name}", value=values[name], problem=problem, remedy=remedy)
