"""Model shapes and data sheets by the names that others use for them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.importers.hf_config import model_of
from experiments.runs.lab import CONF, composed
from experiments.runs.make import make
from testbed.core.errors import InputError
from testbed.core.shapes import model_names, read_model
from testbed.core.specs import GpuSpec, ModelSpec

# Names on Hugging Face of models that ship, with the longest sequence where it is another.
ALIASES = {
    "llama-3.1-8b": ("llama-3-8b", 131_072),
    "llama-3.1-8b-instruct": ("llama-3-8b", 131_072),
    "meta-llama-3-8b": ("llama-3-8b", 8192),
    "llama-3.1-70b": ("llama-3-70b", 131_072),
    "llama-3.1-70b-instruct": ("llama-3-70b", 131_072),
}
DEVICES = {
    "rtx pro 6000 blackwell": "rtx-pro-6000",
    "a100-sxm4-80gb": "a100-80gb",
    "a100 80gb": "a100-80gb",
    "a100-sxm4-40gb": "a100-40gb",
    "h100 80gb": "h100-80gb",
    "h200": "h200",
}


def gpu_names() -> list[str]:
    """The data sheets of the config tree."""
    return sorted(path.stem for path in (CONF / "gpu").glob("*.yaml"))


def model_named(name: str) -> ModelSpec:
    """A model by a name of the config tree or of Hugging Face, or by the path of its config.json or model file."""
    if Path(name).is_file():
        return model_of(Path(name))
    short = name.rpartition("/")[2].lower()
    known, max_len = ALIASES.get(short, (short, None))
    if known not in model_names():
        listed = ", ".join(model_names())
        raise InputError(f"--model {name}: not the path of a config.json, and none of {listed}; give the path of one")
    spec = read_model(known)
    return spec if max_len is None else replace(spec, name=short, max_len=max_len)


def gpu_named(name: str) -> GpuSpec:
    """A data sheet of the config tree, or a JSON file with the values of one."""
    if Path(name).is_file():
        values: dict[str, Any] = json.loads(Path(name).read_text())
        return GpuSpec(**values)
    if name not in gpu_names():
        raise InputError(f"no data sheet of GPU {name!r}; choose from {', '.join(gpu_names())}, or give a JSON file")
    spec: GpuSpec = make(composed(f"gpu/{name}", ()).gpu)
    return spec


def gpu_of_device(device: str) -> GpuSpec | None:
    """The data sheet of a device by our name or the one its driver gives it, None where the config tree has none."""
    if device in gpu_names():
        return gpu_named(device)
    found = next((name for part, name in DEVICES.items() if part in device.lower()), None)
    return gpu_named(found) if found else None
