"""The words of a command that starts vLLM's server, in each form that engineers have it in."""

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from testbed.core.errors import InputError
from testbed.core.server_commands import Program
from testbed.vllm.option_table import Option, option_named, options_of

FLAG = "--from-vllm"
VLLM = Program("vllm", "vllm.entrypoints.openai.api_server", "MODEL")
SERVE = VLLM.serve
NEGATIVE_NUMBER = re.compile(r"-\d+(\.\d+)?")
# A key of an option's JSON: --speculative-config.method=ngram, -sc.method ngram
DOTTED = re.compile(r"(?P<option>--?[a-zA-Z][\w-]*)\.(?P<keys>[^=]+)(=(?P<value>.*))?", re.DOTALL)
ON, OFF = "true", "false"
SCALES = {"k": 1000, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
NUMBER = re.compile(r"(?P<number>\d+(\.\d+(?![KMG]))?|\.\d+)(?P<scale>[kmgKMG])?")


@dataclass(frozen=True)
class Command:
    """A server's model, options with their values, and the environment before the command.

    keys: of a configuration that is read as a command, what its options are called there, for
    messages; None: a command.
    """

    model: str | None
    values: Mapping[str, str]
    options: Mapping[str, Option] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] | None = None

    def updated(self, name: str, value: str) -> "Command":
        """This command with another value of one option."""
        return self._of({**self.values, name: value})

    def without(self, name: str) -> "Command":
        """This command without one option."""
        return self._of({key: value for key, value in self.values.items() if key != name})

    def _of(self, values: dict[str, str]) -> "Command":
        return replace(self, values=values, options=options_of(values))


def read_command(text: str) -> Command:
    """The command in `text`: NAME=VALUE words, then `vllm serve MODEL ...` or `python -m` with
    vLLM's module, or the path of a file with the list `args:` of a Kubernetes container.

    Raises InputError for another command, and for a word that vLLM's parser would refuse.
    """
    environment, words = VLLM.split(text)
    command = _read(words)
    return Command(command.model, command.values, command.options, environment)


def serve_words(text: str) -> list[str]:
    """The words behind `vllm serve`; raises InputError for another command."""
    return VLLM.split(text)[1]


def _read(words: Sequence[str]) -> Command:
    """The model and the options of these words; those of --config come before them, as in vLLM."""
    model: str | None = None
    values, options = dict[str, str](), dict[str, Option]()
    dotted = dict[str, dict[str, Any]]()
    rest = deque(words)
    while rest:
        word = rest.popleft()
        if not word.startswith("-"):
            if model is not None:
                raise InputError(
                    key=f"{SERVE}: {word}",
                    problem=f"is a second model, after {model}",
                    remedy="remove it",
                )
            model = word
            continue
        if key := DOTTED.fullmatch(word):
            value = _value_in(rest) if key["value"] is None else key["value"]
            option = _option_of_json(key["option"], word)
            options[option.name] = option
            _merge(dotted.setdefault(option.name, {}), _nested(key["keys"], value, word))
            continue
        for option, value in _given(word, rest):
            options[option.name] = option
            values[option.name] = value
    values |= {name: json.dumps(of_option) for name, of_option in dotted.items()}
    if "--config" in values:
        from_file = _read(_config_words(values["--config"]))
        values = {**from_file.values, **values}
        options = {**from_file.options, **options}
        model = model or from_file.model
    named = values.pop("--model", None)
    return Command(model or named, values, options)


def number_of(text: str) -> float | None:
    """A number as vLLM reads it: 8k is 8,000, 8K is 8,192, and 1.5K is none."""
    match = NUMBER.fullmatch(text)
    return None if match is None else float(match["number"]) * SCALES.get(match["scale"], 1)


def _option_of_json(name: str, word: str) -> Option:
    """The option of a key behind a dot."""
    option = option_named(name, SERVE)[0]
    if option.is_switch:
        raise InputError(key=f"{SERVE}: {word}", problem="takes no value", remedy=f"give {name}")
    return option


def _nested(keys: str, text: str, word: str) -> dict[str, Any]:
    """The JSON of a value at these keys, with dots between; behind KEY+ are parts of a list."""
    if not text or _is_option(text):
        raise InputError(key=f"{SERVE}: {word}", problem="has no value", remedy="give one")
    value = text.split(",") if keys.endswith("+") else _json_of(text)
    for key in reversed(keys.removesuffix("+").split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def _json_of(text: str) -> Any:
    """A value as JSON, a number with its scale, or else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        number = number_of(text)
    return text if number is None else int(number)


def _merge(values: dict[str, Any], others: Mapping[str, Any]) -> None:
    """Add the others: objects are merged, lists are joined, and another value is replaced."""
    for key, value in others.items():
        present = values.get(key)
        if isinstance(present, dict) and isinstance(value, dict):
            _merge(present, value)
        elif isinstance(present, list) and isinstance(value, list):
            present += value
        else:
            values[key] = value


def _given(word: str, rest: deque[str]) -> Iterator[tuple[Option, str]]:
    """The option of a word and its value, which may be words behind it: these leave `rest`."""
    name, equals, value = word.partition("=")
    if re.fullmatch(r"-O\d", name):  # -O3
        yield option_named("--optimization-level", SERVE)[0], name[2:]
        return
    option, is_off = option_named(name, SERVE)
    if option.is_switch:
        if equals:
            raise InputError(
                key=f"{SERVE}: {word}", problem="takes no value", remedy=f"remove ={value}"
            )
        yield option, OFF if is_off else ON
        return
    if not equals:
        value = _value_in(rest, takes_several=option.takes_several)
    if not value or _is_option(value):
        raise InputError(key=f"{SERVE}: {name}", problem="has no value", remedy="give one")
    yield option, value


def _value_in(rest: deque[str], *, takes_several: bool = False) -> str:
    """The first word of `rest`, which it leaves, or all up to the next option, with spaces between;
    empty without any.
    """
    words = [rest.popleft()] if rest else []
    while takes_several and rest and not _is_option(rest[0]):
        words.append(rest.popleft())
    return " ".join(words)


def _is_option(word: str) -> bool:
    return word.startswith("-") and not NEGATIVE_NUMBER.fullmatch(word)


def _config_words(path: str) -> list[str]:
    """The options of a file of --config as words: KEY: VALUE, true for a switch that is on."""
    try:
        values: Any = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise InputError(
            key=f"{SERVE}: --config", value=path, problem=f"cannot be read: {error}"
        ) from None
    if not isinstance(values, dict):
        raise InputError(key=f"{SERVE}: --config", value=path, problem="has no KEY: VALUE lines")
    words = list[str]()
    for key, value in values.items():
        if value is None or key == "config":
            raise InputError(
                key=f"{SERVE}: --config",
                value=path,
                problem=f"{key}: {value}: cannot be used there",
            )
        if isinstance(value, bool):
            words += [f"--{key}"] if value else [f"--no-{key}"]
        elif isinstance(value, list):
            words += [f"--{key}", *map(str, value)]
        elif isinstance(value, dict):
            words += [f"--{key}", json.dumps(value, default=str)]
        else:
            words.append(f"--{key}={value}")
    return words
