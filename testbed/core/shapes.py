"""The models that ship: one JSON file each, read by the simulator, the experiments and the
kernels.
"""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.core.specs import SPECIAL, ModelSpec

CHOSEN = ("max_len", "kv_dtype_bytes", "weight_bits")
MODELS = Path(__file__).parent / "models"


def model_names() -> list[str]:
    return sorted(path.stem for path in MODELS.glob("*.json"))


def shipped(name: str) -> dict[str, Any]:
    """A model's file: `about`, where its numbers come from, and `shape`, the fields of a
    ModelSpec.
    """
    if name not in model_names():
        raise InputError(f"model {name}: is unknown (choose one of {', '.join(model_names())})")
    found: dict[str, Any] = json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def read_model(name: str) -> ModelSpec:
    return ModelSpec(**shipped(name)["shape"])


def check_known_shape(model: ModelSpec) -> None:
    """A model with the name of one that ships must have its shape; a deployment chooses the values
    CHOSEN alone.
    """
    if model.name not in model_names():
        return
    known = read_model(model.name)
    for name in (field.name for field in fields(ModelSpec) if field.name not in CHOSEN):
        here, there = getattr(model, name), getattr(known, name)
        if here != there:
            raise InputError(
                f"model.{name}={here}: {model.name} has {there} (give the model another name: "
                "model.name=...)"
            )


def check_plain(model: ModelSpec, who: str) -> None:
    """Raise InputError for a model with parts that `who` does not know."""
    if not model.is_plain:
        parts = ", ".join(name for name in SPECIAL if getattr(model, name) is not None)
        raise InputError(
            f"model={model.name}: has {parts}, which {who} does not support (cost=analytic does)"
        )
