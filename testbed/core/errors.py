"""The exceptions: errors in the user's input, and errors in a plug-in's code."""

from collections.abc import Collection
from os import PathLike
from typing import Any, Self, TypeVar

Refused = TypeVar("Refused", bound="InputError")


class InputError(ValueError):
    """Bad input. Its text is `KEY=VALUE: PROBLEM (REMEDY)` in one line, without what is not given.

    Code decides by the class and these fields, never by the text.

    Args:
        key: what is wrong: a dotted name, an option of a command, a file with its line, a class.
        value: what was given, shown by `str`; None: the key says all.
        problem: what is wrong with it, as a clause about the key.
        remedy: what to do about it.
    """

    def __init__(
        self,
        *,
        key: str | PathLike[str],
        problem: object,
        value: object = None,
        remedy: str = "",
    ) -> None:
        super().__init__()
        if key is None or problem is None:
            raise TypeError("an InputError names what is wrong, and why")
        self.key, self.problem, self.remedy = str(key), str(problem), remedy
        self.value = None if value is None else str(value)

    def __str__(self) -> str:
        """An option and its value are shown as they are typed, with a space between."""
        joint = " " if self.key.rpartition(": ")[2].startswith("--") else "="
        given = self.key if self.value is None else f"{self.key}{joint}{self.value}"
        text = f"{given}: {self.problem}"
        return f"{text} ({self.remedy})" if self.remedy else text

    def __reduce__(self) -> tuple[Any, ...]:
        return _blank, (type(self),), vars(self)

    def within(self, key: object) -> Self:
        """This refusal of a part of `key`, such as a line of that file."""
        return self._with(key=f"{key}: {self.key}")

    def with_remedy(self, remedy: str) -> Self:
        """This refusal with one more remedy."""
        return self._with(remedy=f"{self.remedy}; {remedy}" if self.remedy else remedy)

    def _with(self, **fields: str) -> Self:
        refusal = _blank(type(self))
        vars(refusal).update(vars(self) | fields)
        return refusal


def _blank(kind: type[Refused]) -> Refused:
    """An error of this class before its fields are set, as copies and pickles begin."""
    return kind.__new__(kind)


class AnswerIsNo(InputError):
    """The input is right, and what it asks for does not hold: the command's exit code is 1."""


class DoesNotFit(AnswerIsNo):
    """The memory of a server does not hold what it must."""


class DoesNotStart(AnswerIsNo):
    """A server of the command or configuration would end at its start: the system refuses a value
    beside others, for the model, the GPU or the release, or its memory.

    A value that is wrong by itself (no number, out of its option's range, none of its choices), and
    what is not modelled, is an InputError of no such class. The problem names the system.
    """

    def __init__(
        self,
        *,
        key: str | PathLike[str],
        problem: object,
        value: object = None,
        remedy: str = "",
        system: str = "vLLM",
    ) -> None:
        text = f"{system} does not start: {problem}"
        super().__init__(key=key, problem=text, value=value, remedy=remedy)


def check_least(least: int, **values: int) -> None:
    """Raise InputError for the first of these values, by name, that is below the least one."""
    for name, value in values.items():
        if value < least:
            raise InputError(key=name, value=value, problem=f"must be at least {least}")


def check_known(key: str, name: str, names: Collection[str]) -> None:
    """Raise InputError for a name that is none of these."""
    if name not in names:
        remedy = f"choose from {', '.join(names)}"
        raise InputError(key=key, value=name, problem="is unknown", remedy=remedy)


class PlugInError(RuntimeError):
    """A policy, scheduler, preemption rule or cost model broke its contract; the message names it
    and its action.
    """


class OracleError(RuntimeError):
    """An oracle was built without the knowledge of the future that it needs."""


class UnsupportedError(TypeError):
    """The policy does not declare the trait that this call needs."""
