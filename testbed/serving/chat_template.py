"""From a conversation to the prompt's text: a model's Jinja template, or plain lines."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, Protocol

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from testbed.core.errors import InputError
from testbed.serving.api_errors import ApiError

# Errors of a template for messages that it was not written for
WRONG_MESSAGES = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
TEMPLATE, CONFIG = "chat_template.jinja", "tokenizer_config.json"
Messages = Sequence[Mapping[str, Any]]


class ChatTemplate(Protocol):
    """Writes a conversation as a prompt, behind which the assistant answers. is_whole: the text has
    its special tokens.
    """

    is_whole: bool

    def text(self, messages: Messages) -> str:
        """The prompt's text; raises ApiError if the messages do not fit the template."""


class PlainLines:
    """A line `ROLE: CONTENT` for each message."""

    is_whole = False

    def text(self, messages: Messages) -> str:
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        return "".join(lines) + "assistant:"


class FolderTemplate:
    """The chat template of a folder in Hugging Face's format, in Jinja's immutable sandbox: it
    cannot change or call what it is not given, and loads no other file.
    """

    is_whole = True

    def __init__(self, source: str, special: Mapping[str, str], where: Path) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_raise, strftime_now=_now)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise InputError(key=where, problem=f"the chat template: {error}") from None
        self._special = special

    def text(self, messages: Messages) -> str:
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, **self._special
            )
        except WRONG_MESSAGES as error:
            message = f"messages: do not fit the model's chat template ({str(error)[:200]})"
            raise ApiError(400, message, "messages") from None


def chat_template(folder: Path | None) -> ChatTemplate:
    """The template of a folder; plain lines without a folder, or if it has no template."""
    if folder is None:
        return PlainLines()
    config = read_config(folder / CONFIG)
    path = folder / TEMPLATE
    source = path.read_text("utf-8") if path.is_file() else config.get("chat_template")
    if isinstance(source, list):  # several, by name
        source = {named["name"]: named["template"] for named in source}.get("default")
    if source is None:
        return PlainLines()
    return FolderTemplate(source, _special_tokens(config), folder)


def read_config(path: Path) -> dict[str, Any]:
    """The values of a JSON file of a model's folder; none if there is no such file."""
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise InputError(key=path, problem=str(error), remedy="give a model's folder") from None
    return config if isinstance(config, dict) else {}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The tokens that a template may name, such as bos_token, as text."""
    named = {name: config[name] for name in config if name.endswith("_token")}
    texts = {
        name: token.get("content") if isinstance(token, dict) else token
        for name, token in named.items()
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _to_json(value: Any, indent: int | None = None) -> str:
    """As Hugging Face's: without escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
