"""The words of a command that starts SGLang's server (release 0.5.23)."""

import json
import re
from argparse import SUPPRESS, ArgumentError, ArgumentParser
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple, NoReturn

from testbed.core.errors import InputError
from testbed.core.server_commands import Program

FLAG = "--from-sglang"
SGLANG = Program("sglang", "sglang.launch_server", "--model-path MODEL")
SERVE = SGLANG.serve
PARSER = Path(__file__).with_name("options-0.5.23.txt")
ON = "true"
NO_VALUE, ONE_VALUE = "0", "1"
UNITS = {"--hicache-size": "GB"}
SCALES = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
BINARY_SCALES = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
SCALED = re.compile(r"(\d+(?:\.\d+(?=[kMGT]$))?)(Ki|Mi|Gi|Ti|k|M|G|T)")


class Option(NamedTuple):
    """An option of the release's parser. nargs: the count of its values; kind: of each
    value, a key of KINDS; choices: empty if any value is one.
    """

    names: tuple[str, ...]
    nargs: str
    kind: str
    choices: tuple[str, ...]

    def read(self, text: str) -> str:
        """A value in its plainest form. Raises InputError for one that the parser refuses."""
        key = f"{SERVE}: {self.names[0]}"
        if self.choices and text not in self.choices:
            remedy = f"choose from {', '.join(self.choices)}"
            raise InputError(key=key, value=text, problem="is unknown", remedy=remedy)
        plain, problem = KINDS[self.kind]
        unit = UNITS.get(self.names[0])
        remedy = f"a number alone, of {unit}" if unit else "give one"
        try:
            return plain(text)
        except (ValueError, RecursionError):
            raise InputError(key=key, value=text, problem=problem, remedy=remedy) from None


@dataclass(frozen=True)
class Command:
    """The options of a server by their first name, with their values, `true` for a flag; and the
    environment before the command.
    """

    values: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _refusal(message)


def _refusal(message: str) -> InputError:
    problem = shorten(message, 150, placeholder=" ...")
    return InputError(key=SERVE, problem=problem, remedy="write the option's whole name")


@cache
def parser_options() -> dict[str, Option]:
    """The options of the release's parser, by their first name.

    `python -m testbed.experiments.sglang_server.parser` writes the file from the installed one.
    """
    options = dict[str, Option]()
    for line in PARSER.read_text(encoding="utf-8").splitlines():
        names, count, kind, *choices = line.split("\t")
        option = Option(tuple(names.split()), count, kind, tuple(choices))
        options[option.names[0]] = option
    return options


def read_command(text: str) -> Command:
    """`sglang serve ...`, whose first word may be the model, or `python -m sglang.launch_server
    ...`. Raises InputError for another command, and for a word that SGLang's parser would refuse.
    """
    environment, words = SGLANG.split(text)
    if words and not words[0].startswith("-") and SGLANG.module not in text:
        words = ["--model-path", *words]
    try:
        found, others = _parser().parse_known_args(words)
    except ArgumentError as error:
        raise _no_such_value(error) from None
    if others:
        raise _no_option(others[0])
    values = {name: _text(parser_options()[name], value) for name, value in vars(found).items()}
    return Command(values, environment)


@cache
def _parser() -> ArgumentParser:
    """SGLang's own library, with its options."""
    parser = _Parser(add_help=False, exit_on_error=False)
    for option in parser_options().values():
        what: dict[str, Any] = {"nargs": None if option.nargs == ONE_VALUE else option.nargs}
        if option.nargs == NO_VALUE:
            what = {"action": "store_const", "const": ON}
        parser.add_argument(*option.names, dest=option.names[0], default=SUPPRESS, **what)
    return parser


def _text(option: Option, value: Any) -> str:
    """The values of an option, with spaces between."""
    if option.nargs == NO_VALUE:
        return ON
    values = value if isinstance(value, list) else [] if value is None else [value]
    return " ".join(map(option.read, values))


def _no_such_value(error: ArgumentError) -> InputError:
    """The refusal of an option whose values are too few, or that takes none; or of no option, as
    Python 3.12.5 and later raise it for the beginning of several names.
    """
    if error.argument_name is None:
        return _refusal(error.message)
    name = str(error.argument_name).partition("/")[0]
    if parser_options()[name].nargs == NO_VALUE:
        return InputError(key=f"{SERVE}: {name}", problem="takes no value", remedy="give it alone")
    return InputError(key=f"{SERVE}: {name}", problem="has no value", remedy="give one")


def _no_option(word: str) -> InputError:
    if word.startswith("-"):
        problem, remedy = "is no option of sglang 0.5.23", "check its spelling"
    else:
        problem, remedy = "is no option", "--model-path MODEL names the model"
    return InputError(key=f"{SERVE}: {word}", problem=problem, remedy=remedy)


def _size(text: str) -> str:
    """SGLang's human_readable_int: 1.5k is 1,500, 2Ki is 2,048."""
    if (match := SCALED.fullmatch(text.strip())) is None:
        return str(int(text))
    number, scale = match.groups()
    return str(int(Decimal(number) * (SCALES | BINARY_SCALES)[scale]))


def _number(text: str) -> str:
    float(text)
    return text


def _json(text: str) -> str:
    json.loads(text)
    return text


KINDS: Mapping[str, tuple[Callable[[str], str], str]] = {
    "text": (str, ""),
    "int": (lambda text: str(int(text)), "is no whole number"),
    "float": (_number, "is no number"),
    "json": (_json, "is no JSON"),
    "size": (_size, "is no whole number (4096, 4k, 4Ki)"),
}
