"""The files of models that ship, one JSON file each; reading their names needs no pydantic."""

from functools import cache
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.core.spelling import LIKE, did_you_mean

MODELS = Path(__file__).parent / "models"


@cache
def model_names() -> list[str]:
    """The names of the models, sorted."""
    return sorted(path.stem for path in MODELS.glob("*.json"))


def shipped(name: str) -> dict[str, Any]:
    """A model's file: `about`, where its numbers come from, and `shape`, the fields of a
    ModelSpec.
    """
    if name not in model_names():
        raise InputError(
            key="model",
            value=name,
            problem=f"is unknown{did_you_mean(name, model_names(), LIKE)}",
            remedy="`testbed list model` shows those that ship",
        )
    import json  # which the names do not need

    contents: dict[str, Any] = json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8"))
    return contents
