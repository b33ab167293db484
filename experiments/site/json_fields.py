"""The page of the answers of `--json`: a table for each class, from its fields and docstring."""

import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from inspect import getdoc
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from testbed.experiments.cli import json_answers

HEAD = """# Fields of the JSON answers

The keys of each object that `--json` prints, by the class of `experiments/cli/json_answers.py`.
"""
SCALARS = {
    str: "string",
    float: "number",
    bool: "boolean",
    NoneType: "null",
    object: "any value",
    Any: "any value",
}
ANSWERS = {name: kind for name, kind in vars(json_answers).items() if is_dataclass(kind)}
ATTRIBUTE = re.compile(r"(?m)^    (\w+): (.*(?:\n {8}.*)*)")


def page() -> str:
    """The page in Markdown."""
    return HEAD + "".join("\n" + "\n".join(_table(name)) + "\n" for name in ANSWERS)


def meanings_of(kind: type) -> dict[str, str]:
    """The meaning of each field, from the section `Attributes` of the docstring."""
    section = (getdoc(kind) or "").partition("Attributes:\n")[2]
    return {name: " ".join(text.split()) for name, text in ATTRIBUTE.findall(section)}


def in_words(hint: Any) -> str:
    """A type in words of JSON."""
    if get_origin(hint) is list:
        return f"list of {in_words(get_args(hint)[0])}"
    if get_origin(hint) is dict:
        return f"map of {in_words(get_args(hint)[1])}"
    if get_args(hint):
        return " or ".join(map(in_words, get_args(hint)))
    return SCALARS.get(hint) or str(hint.__name__)


def _table(name: str) -> Iterator[str]:
    kind: Any = ANSWERS[name]
    meanings = meanings_of(kind)
    yield f"| {name} | type | meaning |"
    yield "|---|---|---|"
    for field, hint in get_type_hints(kind).items():
        yield f"| `{field}` | {in_words(hint)} | {meanings[field].replace('|', chr(92) + '|')} |"
