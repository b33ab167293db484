"""Errors of the command-line library as refusals."""

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

from testbed.core.errors import InputError
from testbed.core.spelling import did_you_mean
from testbed.experiments.cli.app import application
from testbed.experiments.cli.examples import example_of

COMMAND = 'the command alone, in quotes: "vllm serve MODEL ..."'
ELSEWHERE = {  # options of other commands, and what this one takes in their place
    "--from-vllm": COMMAND,
    "--from-sglang": COMMAND,
    "--release": "release=NUMBER among the words",
}
TYPES = {int: "a whole number", float: "a number"}


def command_of(words: Sequence[str]) -> str:
    """The command that the words call, as the user types it: `testbed`, groups, name."""
    chain, _, _ = application.parse_commands(words)
    return " ".join(("testbed", *chain))


def refusal_of(error: CycloptsError, words: Sequence[str]) -> InputError:
    """The given words, the problem, and the --help that explains it."""
    remedy = f"{command_of(words)} --help"
    if isinstance(error, MissingArgumentError) and not error.keyword:
        remedy = _with_example(remedy, command_of(words))
    for error_class, refusal in REFUSALS.items():
        if isinstance(error, error_class):
            return refusal(error).with_remedy(remedy)
    return InputError(key=_name(error), problem=" ".join(str(error).split()), remedy=remedy)


def _with_example(remedy: str, command: str) -> str:
    example = example_of(command)
    return remedy if example is None else f"such as {example}; {remedy}"


def _unknown_option(error: UnknownOptionError) -> InputError:
    word = (error.token.keyword or error.token.value).partition("=")[0]
    names = [name for argument in error.argument_collection for name in argument.names]
    options = ["--help", *(name for name in names if name.startswith("--"))]
    if word in ELSEWHERE:
        return InputError(key=word, problem="no such option", remedy=ELSEWHERE[word])
    return InputError(key=word, problem=f"no such option{did_you_mean(word, options)}")


def _unknown_command(error: UnknownCommandError) -> InputError:
    word = (error.unused_tokens or [""])[0]
    app = error.app or application
    names = list(names_of_commands(app))
    kind = "option" if word.startswith("-") else "command"
    near = did_you_mean(word, [*names, "--help", "--version", "--debug"])
    remedy = f"choose from {', '.join(names)}"
    return InputError(key=word, problem=f"no such {kind}{near}", remedy=remedy)


def names_of_commands(app: App) -> Iterator[str]:
    """The commands of a group, in order."""
    yield from (name for name in app.resolved_commands() if not name.startswith("-"))


def _not_converted(error: CoercionError) -> InputError:
    value = error.token.value if error.token else None
    choices = get_args(error.target_type)
    if choices and all(isinstance(choice, str) for choice in choices) and value is not None:
        near = did_you_mean(value, choices)
        problem = f"must be one of {', '.join(choices)}{near}"
    else:
        types = [target for target in choices or (error.target_type,) if target is not type(None)]
        problem = "must be " + " or ".join(TYPES.get(target, f"a {target}") for target in types)
    return InputError(key=_name(error), value=value, problem=problem)


def _refused_value(error: ValidationError) -> InputError:
    tokens = error.argument.tokens if error.argument else []
    values = " ".join(token.value for token in tokens)
    return InputError(key=_name(error), value=values, problem=error.exception_message)


def _missing(error: MissingArgumentError) -> InputError:
    problem = "has no value" if error.keyword else "is missing"
    return InputError(key=error.keyword or _name(error), problem=problem)


def _given_twice(error: RepeatArgumentError) -> InputError:
    return InputError(key=error.token.keyword or _name(error), problem="is given twice")


def _unused(error: UnusedCliTokensError) -> InputError:
    return InputError(key=(error.unused_tokens or [""])[0], problem="nothing reads it")


def _name(error: Any) -> str:
    return str(error.argument.name) if error.argument else "the command"


REFUSALS: dict[type[CycloptsError], Callable[[Any], InputError]] = {
    UnknownOptionError: _unknown_option,
    UnknownCommandError: _unknown_command,
    CoercionError: _not_converted,
    ValidationError: _refused_value,
    MissingArgumentError: _missing,
    RepeatArgumentError: _given_twice,
    UnusedCliTokensError: _unused,
}
