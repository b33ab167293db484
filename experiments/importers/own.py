"""Our own JSON: checked, and written again; model and data sheet may be put right on the way."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from experiments.importers.imported import Asked, Imported
from experiments.importers.known_shapes import gpu_named, gpu_of_device, model_named
from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec, ModelSpec
from testbed.cost.sections import FORMAT

NAME = "our own JSON"


class Own(Imported):
    """A profile that is in our format already."""

    whole: dict[str, Any]

    def profile(self) -> Mapping[str, Any]:
        """What was read, with what was asked for."""
        super_values = super().profile()
        return {**self.whole, "model": super_values["model"], "gpu": super_values["gpu"]}


def is_here(source: Path) -> bool:
    """Whether it is a JSON file."""
    return source.is_file() and source.suffix == ".json"


def read(source: Path, asked: Asked) -> Own:
    """The profile of the file; every section and point is looked at."""
    whole = _json(source)
    model = model_named(asked.model) if asked.model else _spec(source, whole)
    if asked.tensor_parallel not in (None, whole.get("num_gpus")):
        raise InputError(
            f"{source}: is of {whole.get('num_gpus')} GPU(s), not of {asked.tensor_parallel}; leave it out"
        )
    if type(whole.get("num_gpus")) is not int or whole["num_gpus"] < 1:
        raise InputError(f"{source}: num_gpus is {whole.get('num_gpus')!r}; it must be a whole number of at least 1")
    device = str(whole.get("fingerprint", {}).get("device", "unknown"))
    found = Own(NAME, device, model, whole["num_gpus"], _gpu(whole, device, asked), whole.get("sections", {}))
    found.whole = whole
    for name, section in found.sections.items():
        _check(source, name, section)
    if not found.sections:
        raise InputError(f"{source}: has no sections; a profile holds measured points")
    return found


def _json(source: Path) -> dict[str, Any]:
    try:
        whole = json.loads(source.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{source}: not valid JSON, or cut short; copy it again") from error
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        kind = whole.get("format") if isinstance(whole, dict) else type(whole).__name__
        raise InputError(f"{source}: profile format {kind}, this version reads {FORMAT}")
    return whole


def _spec(source: Path, whole: Mapping[str, Any]) -> ModelSpec:
    model = whole.get("model")
    names = {field.name for field in fields(ModelSpec)}
    if not isinstance(model, dict) or not names - {"tied_embedding", "dtype_bytes"} <= set(model) <= names:
        raise InputError(f"{source}: model must have {', '.join(sorted(names))}; or name one by --model")
    return ModelSpec(**model)


def _gpu(whole: Mapping[str, Any], device: str, asked: Asked) -> GpuSpec | None:
    if asked.gpu:
        return gpu_named(asked.gpu)
    return GpuSpec(**whole["gpu"]) if whole.get("gpu") else gpu_of_device(device)


def _check(source: Path, name: str, section: Any) -> None:
    """A section has axes and points; every point has a value on each axis and a time that is a number, at least 0."""
    where = f"{source}, section {name}"
    if not isinstance(section, dict) or not section.get("axes") or not section.get("points"):
        raise InputError(f"{where}: needs axes and at least one point")
    width = len(section["axes"])
    for number, row in enumerate(section["points"], start=1):
        if not isinstance(row, list) or len(row) <= width:
            raise InputError(f"{where}, point {number}: {row!r} is not {width} axis values and a time")
        value = row[width]
        if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
            raise InputError(f"{where}, point {number}: {value!r} is not a number of at least 0")
