"""The words of a command that starts SGLang's server (release 0.5.23)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from testbed.core.errors import InputError
from testbed.core.server_commands import Program

FLAG = "--from-sglang"
SGLANG = Program("sglang", "sglang.launch_server", "--model-path MODEL")
SERVE = SGLANG.serve
PARSER = Path(__file__).with_name("options-0.5.23.txt")
ON = "true"


@dataclass(frozen=True)
class Command:
    """The options of a server by their first name, with their values, `true` for a flag; and the
    environment before the command.
    """

    values: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)


@cache
def parser_options() -> dict[str, tuple[str, bool]]:
    """Each name of an option of the release's parser: its first name, and whether it is a flag.

    `python -m testbed.experiments.sglang_server.parser` writes the file from the installed one.
    """
    options = dict[str, tuple[str, bool]]()
    for line in PARSER.read_text(encoding="utf-8").splitlines():
        names, kind = line.split("\t")
        first, *others = names.split()
        for name in (first, *others):
            options[name] = (first, kind == "flag")
    return options


def read_command(text: str) -> Command:
    """`sglang serve ...`, whose first word may be the model, or `python -m sglang.launch_server
    ...`. Raises InputError for another command, and for a word that SGLang's parser would refuse.
    """
    environment, words = SGLANG.split(text)
    if words and not words[0].startswith("-") and SGLANG.module not in text:
        words = ["--model-path", *words]
    values = dict[str, str]()
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            raise InputError(
                key=f"{SERVE}: {word}",
                problem="is no option",
                remedy="--model-path MODEL names the model",
            )
        first, is_flag = _option(name)
        values[first] = ON if is_flag else value if equals else _value(name, rest)
    return Command(values, environment)


def _option(name: str) -> tuple[str, bool]:
    """The option of this name, or the only one whose name begins so, as argparse reads it."""
    options = parser_options()
    begun = {options[other] for other in options if other.startswith(name)}
    if name not in options and len(begun) != 1:
        raise InputError(
            key=f"{SERVE}: {name}",
            problem="is no option of sglang 0.5.23",
            remedy="check its spelling",
        )
    return options.get(name) or begun.pop()


def _value(name: str, rest: Iterator[str]) -> str:
    value = next(rest, None)
    if value is None or value.startswith("--"):
        raise InputError(key=f"{SERVE}: {name}", problem="has no value", remedy="give one")
    return value
