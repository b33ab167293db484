"""Errors of the command-line library as one line: `what was given: what is wrong (what to do)`."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
    ValidationError,
)

from testbed.core.spelling import did_you_mean
from testbed.experiments.cli.app import application

TYPES = {int: "a whole number", float: "a number"}


def command_of(words: Sequence[str]) -> str:
    """The command that the words call, as the user types it: `testbed`, groups, name."""
    chain, _, _ = application.parse_commands(words)
    return " ".join(("testbed", *chain))


def sentence(error: CycloptsError, words: Sequence[str]) -> str:
    """One line that says what was given, what is wrong, and which --help explains it."""
    command = command_of(words)
    for error_class, phrase in PHRASES.items():
        if isinstance(error, error_class):
            return f"{phrase(error)} ({command} --help)"
    return f"{' '.join(str(error).split())} ({command} --help)"


def _unknown_option(error: UnknownOptionError) -> str:
    word = (error.token.keyword or error.token.value).partition("=")[0]
    names = [name for argument in error.argument_collection for name in argument.names]
    options = ["--help", *(name for name in names if name.startswith("--"))]
    return f"{word}: no such option{did_you_mean(word, options)}"


def _unknown_command(error: UnknownCommandError) -> str:
    word = (error.unused_tokens or [""])[0]
    app = error.app or application
    names = list(names_of_commands(app))
    kind = "option" if word.startswith("-") else "command"
    near = did_you_mean(word, [*names, "--help", "--version", "--debug"])
    return f"{word}: no such {kind}{near}; choose from {', '.join(names)}"


def names_of_commands(app: App) -> Iterator[str]:
    """The commands of a group, in order."""
    yield from (name for name in app.resolved_commands() if not name.startswith("-"))


def _not_converted(error: CoercionError) -> str:
    word = f"{_name(error)} {error.token.value}" if error.token else _name(error)
    choices = get_args(error.target_type)
    if choices and all(isinstance(choice, str) for choice in choices) and error.token:
        near = did_you_mean(error.token.value, choices)
        return f"{word}: must be one of {', '.join(choices)}{near}"
    types = [target for target in choices or (error.target_type,) if target is not type(None)]
    expected = " or ".join(TYPES.get(target, f"a {target}") for target in types)
    return f"{word}: must be {expected}"


def _refused_value(error: ValidationError) -> str:
    tokens = error.argument.tokens if error.argument else []
    values = " ".join(token.value for token in tokens)
    return f"{_name(error)} {values}: {error.exception_message}"


def _missing(error: MissingArgumentError) -> str:
    if error.keyword:
        return f"{error.keyword}: has no value"
    return f"{_name(error)}: is missing"


def _given_twice(error: RepeatArgumentError) -> str:
    return f"{error.token.keyword}: is given twice"


def _unused(error: UnusedCliTokensError) -> str:
    return f"{(error.unused_tokens or [''])[0]}: nothing reads it"


def _name(error: Any) -> str:
    return str(error.argument.name) if error.argument else "the command"


PHRASES: dict[type[CycloptsError], Callable[[Any], str]] = {
    UnknownOptionError: _unknown_option,
    UnknownCommandError: _unknown_command,
    CoercionError: _not_converted,
    ValidationError: _refused_value,
    MissingArgumentError: _missing,
    RepeatArgumentError: _given_twice,
    UnusedCliTokensError: _unused,
}
