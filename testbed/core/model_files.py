"""The files of models that ship, one JSON file each; reading their names needs no pydantic."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.core.spelling import near_names, question

MODELS = Path(__file__).parent / "models"
LIKE = 3  # models that a message offers for one without a shape


@cache
def model_names() -> list[str]:
    """The names of the models, sorted."""
    return sorted(path.stem for path in MODELS.glob("*.json"))


def did_you_mean_model(name: str, names: Sequence[str]) -> str:
    """As did_you_mean, of models: those of them that also take images are marked."""
    near = near_names(name, names, LIKE)
    return question(
        [f"{other} (with an encoder of images)" if _sees(other) else other for other in near]
    )


def _sees(name: str) -> bool:
    return name in model_names() and "vision_params" in shipped(name)["shape"]


def shipped(name: str) -> dict[str, Any]:
    """A model's file: `about`, where its numbers come from, and `shape`, the fields of a
    ModelSpec.
    """
    if name not in model_names():
        raise InputError(
            key="model",
            value=name,
            problem=f"is unknown{did_you_mean_model(name, model_names())}",
            remedy="`testbed list model` shows those that ship",
        )
    import json  # which the names do not need

    contents: dict[str, Any] = json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8"))
    return contents
