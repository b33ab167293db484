"""The models that ship: one JSON file each, read by the simulator, the experiments and the kernels.

This module imports no specification, so that help and tab completion list models at once.
"""

import json
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError

MODELS = Path(__file__).parent / "models"


def model_names() -> list[str]:
    """The models that ship, in alphabetical order."""
    return sorted(path.stem for path in MODELS.glob("*.json"))


def shipped(name: str) -> dict[str, Any]:
    """A model's file: `about`, where its numbers come from, and `shape`, the fields of a
    ModelSpec.
    """
    if name not in model_names():
        raise InputError(f"model {name}: is unknown (choose one of {', '.join(model_names())})")
    found: dict[str, Any] = json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8"))
    return found
