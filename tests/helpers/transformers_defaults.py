"""The class defaults of Transformers' configurations, as testbed/core/hf_defaults.json stores them.

`python tests/helpers/transformers_defaults.py` writes the table of the installed
Transformers; RELEASE is the one that the stored table is of.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from testbed.core.hf_fields import DEFAULTS, class_names, keys_read, types

RELEASE = "5.20.2"


def table(kinds: Iterable[str]) -> dict[str, dict[str, Any]]:
    """For each model_type, what its class takes for the keys that the project reads, which of them
    it refuses as null, and other names that it has for them. Keys that the class does not have are
    left out.
    """
    from transformers import CONFIG_MAPPING

    return {kind: _of_class(CONFIG_MAPPING[kind], keys_read()) for kind in kinds}


def _of_class(config_class: Any, keys: Iterable[str]) -> dict[str, Any]:
    entries = {entry.name: entry for entry in dataclasses.fields(config_class)}
    read, pairs = {*keys, *types()["memory"]}, config_class.attribute_map.items()
    found = [entries[key] for key in keys if key in entries]
    return {
        "defaults": {entry.name: _default(entry) for entry in found},
        "not_null": [entry.name for entry in found if not _takes_null(entry.type)],
        "aliases": dict(_second_first(pair, entries) for pair in pairs if read & {*pair}),
    }


def _second_first(names: tuple[str, str], entries: Mapping[str, Any]) -> tuple[str, str]:
    """Two names of a key, first the one that a class does not declare: it is set last."""
    first, second = names
    return names if second in entries else (second, first)


def _default(entry: Any) -> Any:
    if entry.default_factory is not dataclasses.MISSING:
        return entry.default_factory()
    return None if entry.default is dataclasses.MISSING else entry.default


def _takes_null(hint: Any) -> bool:
    """True if an annotation, as a type or as text, has None among its members."""
    return "None" in str(hint) or "Optional" in str(hint)


def text_of(classes: dict[str, dict[str, Any]]) -> str:
    """The table as the file has it: a line a model_type."""
    lines = [f" {json.dumps(kind)}: {json.dumps(values)}" for kind, values in classes.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    DEFAULTS.write_text(text_of(table(class_names())), encoding="utf-8")
