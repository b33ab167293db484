"""The tokens that end a text, from a folder in Hugging Face's format."""

from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.serving.chat_template import read_config

FILES = ("generation_config.json", "config.json")  # the first that says it counts
KEY = "eos_token_id"


def end_tokens(folder: Path) -> frozenset[int]:
    """The ids of a folder's files; none if no file says it."""
    for name in FILES:
        ids = read_config(folder / name).get(KEY)
        if ids is not None:
            return frozenset(_checked(ids if isinstance(ids, list) else [ids], folder / name))
    return frozenset()


def _checked(ids: list[Any], path: Path) -> list[int]:
    if not all(type(token) is int for token in ids):
        raise InputError(key=f"{path}: {KEY}", value=ids, problem="must be token ids")
    return ids
