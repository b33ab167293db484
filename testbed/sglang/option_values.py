"""The numbers of a command's options."""

from collections.abc import Mapping

from testbed.core.errors import InputError
from testbed.sglang.command import SERVE


def number(values: Mapping[str, str], name: str) -> int | None:
    """The whole number of an option; None if it is not given."""
    text = values.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise refusal(values, name, "is no whole number", "give one") from None


def whole(values: Mapping[str, str], name: str) -> int | None:
    """The same of an option that counts."""
    count = number(values, name)
    if count is not None and count < 1:
        raise refusal(values, name, "must be above 0")
    return count


def decimal(values: Mapping[str, str], name: str) -> float | None:
    """The number of an option; None if it is not given."""
    text = values.get(name)
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise refusal(values, name, "is no number", "give one") from None


def refusal(values: Mapping[str, str], name: str, problem: str, remedy: str = "") -> InputError:
    """The refusal of an option's value."""
    return InputError(key=f"{SERVE}: {name}", value=values[name], problem=problem, remedy=remedy)
