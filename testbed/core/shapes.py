"""The models that ship: one JSON file each, which the simulator, the experiments and the kernels read alike."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec

MODELS = Path(__file__).parent / "models"


@dataclass(frozen=True, slots=True)
class Shipped:
    """A file's content: where the numbers come from, and the fields of a ModelSpec.

    ffn_matrices is 2 for up and down, 3 for gate, up and down; max_len is in tokens; dtype_bytes 2 means fp16.
    """

    about: str
    shape: dict[str, Any]


def model_names() -> list[str]:
    """The names of all models that ship."""
    return sorted(path.stem for path in MODELS.glob("*.json"))


def shipped(name: str) -> Shipped:
    """What the file of a model says."""
    if name not in model_names():
        raise InputError(f"unknown model {name}: choose one of {', '.join(model_names())}")
    return Shipped(**json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8")))


def read_model(name: str) -> ModelSpec:
    """The shape of a model by name."""
    return ModelSpec(**shipped(name).shape)
