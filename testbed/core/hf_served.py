"""Refusals of a folder that a server reads otherwise than its config.json alone says."""

import re
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.core.hf_config import contents_of
from testbed.core.hf_fields import types

GENERATES = re.compile(r"(?P<name>\w+)For(CausalLM|ConditionalGeneration)")


def check_served(path: Path) -> None:
    """Raise InputError if a server takes another class than the one of the file's model_type."""
    config = contents_of(path)
    listed = config.get("architectures") or []
    if not listed and config.get("model_type") in types()["text"]:
        raise InputError(
            key=f"{path}: architectures",
            problem="is missing: without it a release serves such a file as a pooling model",
            remedy="add the class that generates text",
        )
    if not isinstance(listed, list) or (listed and not _is_class_of(listed[0], config)):
        raise InputError(
            key=f"{path}: architectures",
            value=repr(listed),
            problem=f"is no class that generates text of a {config.get('model_type')}",
            remedy="leave it out for the class of its model_type",
        )


def _is_class_of(name: Any, config: dict[str, Any]) -> bool:
    """True if a class that generates text has the name of the file's type, or its other name."""
    kind = str(config.get("model_type"))
    match = GENERATES.fullmatch(str(name))
    names = {kind.removesuffix("_text"), types()["class_of_vllm"].get(kind, kind)}
    return match is not None and _plain(match["name"]) in map(_plain, names)


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
