"""The words of a command that starts a server, in each form that engineers have it in."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from testbed.core.errors import InputError

VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
UNQUOTED = re.compile(r"(-[^=]*=)?\{\s*([\w-]+\s*:[^\"]*)?", re.DOTALL)  # {method: or {
PYTHON = re.compile(r"(.*/)?python[\d.]*")


@dataclass(frozen=True)
class Program:
    """A program that starts a server: `NAME serve`, or `python -m MODULE`.

    example: the words behind `serve`, for messages.
    """

    name: str
    module: str
    example: str

    @property
    def serve(self) -> str:
        """The words with which messages on a command begin."""
        return f"{self.name} serve"

    def starts(self, text: str) -> bool:
        """True if a command's words begin as this program's do, whatever they are."""
        try:
            words = _without_environment(_words(text, self))[1]
        except InputError:
            return False
        return self._options(words) is not None

    def split(self, text: str) -> tuple[dict[str, str], list[str]]:
        """The environment before a command, and the words of its options.

        The text is NAME=VALUE words, then the command, or the path of a file with the list `args:`
        of a Kubernetes container. Raises InputError for another command.
        """
        environment, words = _without_environment(_words(text, self))
        options = self._options(words)
        if unquoted := next(filter(UNQUOTED.fullmatch, options or ()), None):
            raise InputError(
                key=f"{self.serve}: {unquoted}",
                problem="is no JSON: the quotes around its names are gone, as a shell takes them",
                remedy="put it in single quotes inside the command: --OPTION '{\"key\": ...}'",
            )
        if options is None:
            raise InputError(
                key=repr(text[:80]),
                problem=(
                    f"is not a command of its server ({self.serve} {self.example} ..., or "
                    f"python -m {self.module})"
                ),
            )
        return environment, options

    def _options(self, words: Sequence[str]) -> list[str] | None:
        """The words behind the program; None if another is named."""
        if list(words[:2]) == [self.name, "serve"]:
            return list(words[2:])
        if words and PYTHON.fullmatch(words[0]) and list(words[1:3]) == ["-m", self.module]:
            return list(words[3:])
        return None


def _words(text: str, program: Program) -> list[str]:
    if "args:" in text:
        return _kubernetes_words(text, program)
    try:
        return shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise InputError(key=program.serve, problem=f"cannot be read: {error}") from None


def _kubernetes_words(text: str, program: Program) -> list[str]:
    """The words of a container's `command:` and `args:`, which may stand alone."""
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(
            key=f"{program.serve}: args", problem=f"cannot be read as YAML: {error}"
        ) from None
    if not isinstance(values, dict) or not isinstance(values.get("args"), list):
        raise InputError(
            key=f"{program.serve}: args",
            problem="is no list of words",
            remedy="give a container's args",
        )
    command = values.get("command", [])
    words = [str(word) for word in (*(command if isinstance(command, list) else []),)]
    arguments = [str(word) for word in values["args"]]
    if len(arguments) == 1 and " " in arguments[0] and program.name in arguments[0]:
        arguments, words = shlex.split(arguments[0]), []  # sh -c "vllm serve ..."
    if not words and arguments[:1] != [program.name] and not PYTHON.fullmatch(arguments[0]):
        words = [program.name, "serve"]  # the image's own entry point
    return [*words, *arguments]


def _without_environment(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    rest = list(words)
    if rest[:1] == ["env"]:
        rest.pop(0)
    environment = {}
    while rest and VARIABLE.fullmatch(rest[0]):
        name, _, value = rest.pop(0).partition("=")
        environment[name] = value
    return environment, rest
