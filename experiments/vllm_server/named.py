"""The model and the GPU of a command: their shape and data sheet by the names that vLLM takes."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import yaml

from testbed.core.config_model import read
from testbed.core.errors import InputError
from testbed.core.hf_config import model_of
from testbed.core.model_files import model_names
from testbed.core.shapes import read_model
from testbed.core.specs import GpuSpec, ModelSpec
from testbed.core.spelling import did_you_mean
from testbed.experiments.runs.choice_names import files_of, names_of
from testbed.experiments.vllm_server.command import FLAG

# Of the same shape as one that ships, with another longest sequence where that is given.
SAME_SHAPE = {
    "llama-3.3-70b": ("llama-3.1-70b", None),
    "granite-3.3-8b": ("granite-3.1-8b", None),
    "nemotron-h-8b-base-8k": ("nemotron-h-8b", None),
    "qwen3-30b-a3b-instruct-2507": ("qwen3-30b-a3b", 262_144),
    "qwen3-30b-a3b-thinking-2507": ("qwen3-30b-a3b", 262_144),
}
# Names of weights and activations of 8 bits, whose shape is the model's.
EIGHT_BITS = re.compile(r"-(fp8(-dynamic)?|quantized\.w8a8)$")
NUMBER = re.compile(r"\d+(\.\d+)?e\d+")
TRAINING = re.compile(r"-(instruct|chat|hf|it|base|pt|thinking|\d{4})$")
VERSION = re.compile(r"-(instruct|chat)-(v\d+(\.\d+)?)$")


class Named(NamedTuple):
    """A model's shape, and the option of ours that selects it; None: no option has this shape."""

    shape: ModelSpec
    option: str | None


def model_named(name: str | None, folders: Sequence[Path] = ()) -> Named:
    """The model of a command: a folder with a config.json, a model that ships or that a folder of
    options has, or one in the local cache of Hugging Face.

    Nothing is downloaded or executed. Raises InputError for a model without a shape.
    """
    if not name:
        raise InputError(f"{FLAG}: the command names no model (vllm serve MODEL)")
    if (Path(name) / "config.json").is_file():
        return Named(model_of(Path(name) / "config.json"), None)
    plain = EIGHT_BITS.sub("", name.rstrip("/").lower())
    short, max_len = _short(plain, names_of("model", folders))
    if short in model_names():
        shape = read_model(short)
        if plain != name.rstrip("/").lower():
            shape = replace(shape, weight_bits=8)
        return Named(shape if max_len is None else replace(shape, max_len=max_len), short)
    files = files_of("model", folders)
    if short in files:
        return Named(model_of(files[short]), short)
    cached = _cached_config(name)
    if cached is not None:
        return Named(model_of(cached, name.rpartition("/")[2].lower()), None)
    choices = ", ".join(names_of("model", folders))
    way_out = f"testbed import model writes one; or add model= of {choices}"
    raise InputError(f"{FLAG}: model {name}: has no shape here ({way_out})")


def _short(name: str, models: Sequence[str]) -> tuple[str, int | None]:
    """Our name of a model of Hugging Face: without its owner, its training and its date."""
    short = name.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    if version := VERSION.search(short):  # mistral-7b-v0.1 has another shape than its successors
        plain = short[: version.start()]
        short = f"{plain}-{version[2]}" if f"{plain}-{version[2]}" in models else plain
    while True:
        if short in SAME_SHAPE:
            return SAME_SHAPE[short]
        if short in models or not TRAINING.search(short):
            return short, None
        short = TRAINING.sub("", short)


def _cached_config(name: str) -> Path | None:
    """The newest config.json of a model in the cache of Hugging Face (HF_HUB_CACHE, HF_HOME)."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    folder = hub / f"models--{name.replace('/', '--')}" / "snapshots"
    paths = sorted(folder.glob("*/config.json"), key=lambda path: path.stat().st_mtime)
    return paths[-1] if paths else None


def gpu_named(name: str | None, folders: Sequence[Path] = ()) -> GpuSpec:
    """The data sheet of a GPU by our name; the command itself does not say on which it runs."""
    files = files_of("gpu", folders)
    if name not in files:
        if near := did_you_mean(name or "", files):
            raise InputError(f"no gpu/{name}{near}")
        raise InputError(
            f"{FLAG}: the command does not say on which GPU (add gpu=NAME of "
            f"{', '.join(sorted(files))})"
        )
    sheet = yaml.safe_load(files[name].read_text(encoding="utf-8"))
    del sheet["_target_"]
    return read(GpuSpec, {key: _plain(value) for key, value in sheet.items()}, "gpu")


def _plain(value: object) -> object:
    """A number that YAML 1.1 takes for text, such as 3.35e12, as a number."""
    return float(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value
