"""The values of a Hugging Face config.json, and what is known of the types of models."""

import tomllib
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError


@cache
def types() -> dict[str, Any]:
    """What is known of model types, as hf_types.toml says."""
    return tomllib.loads(Path(__file__).with_name("hf_types.toml").read_text(encoding="utf-8"))


def supported() -> list[str]:
    """The model types that can be read."""
    return list(types()["supported"])


class Fields:
    """The values of a config.json, which know what was read; `path` is for messages."""

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self._values = values
        self.path = path
        self._read = set[str]()

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key; `default` where it is missing or null."""
        self._read.add(key)
        value = self._values.get(key)
        return default if value is None else value

    def whole(self, key: str, default: int | None = None) -> int:
        """The value of a key as a whole number of at least 1. Raises InputError for any other, and
        for a missing one without a default.
        """
        value = self.get(key, default)
        if type(value) is not int or value < 1:
            raise InputError(f"{self.path}: {key}={value!r}: must be a whole number of at least 1")
        return value

    def check_memory(self) -> None:
        """Raise InputError for a field that changes the memory of a model, and that nothing has
        read.
        """
        for key in types()["memory"]:
            if key not in self._read and self._values.get(key) not in (None, False, 0, [], {}):
                kind = self._values.get("model_type")
                raise InputError(
                    f"{self.path}: {key}={self._values[key]!r}: changes the memory of a model, and "
                    f"is not supported for model_type {kind!r} (write the ModelSpec by hand)"
                )


def types_with(key: str) -> list[str]:
    """The model types that have a property of hf_types.toml."""
    return list(types()[key])


def pattern_of(fields: Fields, kind: str) -> Counter[str]:
    """Nemotron-H's layers by kind: Mamba, attention and feed-forward networks; those of other types
    are alike.
    """
    if kind != "nemotron_h":
        return Counter()
    pattern = fields.get("hybrid_override_pattern", "")
    if not isinstance(pattern, str) or not pattern or set(pattern) - set("M*-"):
        raise InputError(
            f"{fields.path}: hybrid_override_pattern={pattern!r}: must consist of M, * and - only"
        )
    return Counter(pattern)
