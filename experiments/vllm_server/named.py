"""The model and the GPU of a command: their shape and data sheet by the names that vLLM takes."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from testbed.core.config_model import read
from testbed.core.errors import InputError
from testbed.core.hf_config import model_of
from testbed.core.hf_fields import TRANSFORMERS
from testbed.core.hf_served import check_served
from testbed.core.model_files import did_you_mean_model, model_names
from testbed.core.shapes import read_model
from testbed.core.specs import GpuSpec, ModelSpec
from testbed.core.spelling import did_you_mean
from testbed.experiments.runs.choice_names import config_in, files_of, names_of
from testbed.experiments.runs.model_naming import (
    Name,
    caches_fp8,
    name_of,
    published_as,
    quantised_by_name,
)
from testbed.experiments.runs.yaml_values import yaml_values
from testbed.vllm.checkpoints import Quantization


class ShapelessModel(InputError):
    """A model that is no folder, does not ship and is not in the cache of Hugging Face."""


class Named(NamedTuple):
    """A model's shape, and the option of ours that selects it.

    config: the config.json that the shape was read from, of a model that does not ship.
    quantization: that which the name says.
    """

    shape: ModelSpec
    option: str
    config: Path | None = None
    quantization: Quantization = Quantization()


def model_named(
    name: str | None, folders: Sequence[Path] = (), *, transformers: int = TRANSFORMERS
) -> Named:
    """The model of a command: a folder with a config.json, a model that ships or that a folder of
    options has, or one in the local cache of Hugging Face.

    Of a folder and an imported option of one name the option is taken, for `./NAME` is the folder.
    Nothing is downloaded or executed. transformers: as of Fields, for a config.json. Raises
    InputError for a model without a shape.
    """
    if not name:
        raise InputError(
            key="model",
            problem=(
                "the server's command names none (vllm serve MODEL, sglang serve --model-path "
                "MODEL)"
            ),
        )
    is_imported = name in files_of("model", folders) and name not in model_names()
    own = config_in(name)
    if own is not None and not is_imported:
        check_served(own)
        return Named(model_of(own, transformers=transformers), _of_folder(own), own)
    meant = name_of(name, names_of("model", folders))
    if meant.model in model_names():
        said = Quantization(meant.quantization)
        return Named(_changed(read_model(meant.model), meant), meant.model, quantization=said)
    files = files_of("model", folders)
    if meant.model in files:
        path = files[meant.model]
        return Named(_changed(model_of(path, transformers=transformers), meant), meant.model, path)
    cached = cached_config(name)
    if cached is not None:
        check_served(cached)
        shape = model_of(cached, name.rpartition("/")[2].lower(), transformers=transformers)
        return Named(shape, _of_folder(cached), cached)
    raise _shapeless(name, did_you_mean_model(meant.model, names_of("model", folders)))


def _of_folder(config: Path) -> str:
    """The option of a config.json: its folder, by a path that no name of ours is."""
    folder = config.parent
    return str(folder) if folder.is_absolute() else f"./{folder}"


def _shapeless(name: str, question: str) -> InputError:
    """The refusal of a model; question: after the few that are like it."""
    if Path(name).is_dir():
        return InputError(
            key="model",
            value=name,
            problem="is a folder without a config.json",
            remedy="give the folder that has it",
        )
    return ShapelessModel(
        key="model",
        value=name,
        problem=f"has no shape here{question}",
        remedy=(
            f"give a folder with its config.json, or {quantised_remedy(name, 'NAME')}, NAME of one "
            "that is alike (`testbed list model` shows them)"
        ),
    )


def quantised_remedy(named: str, model: str) -> str:
    """The words with which a model stands in for one whose name may say a quantization."""
    by_name = quantised_by_name(named)
    if by_name is None:
        return f"add model={model}"
    if not by_name.end:
        return (
            "testbed import model the config.json without quantization_config, add weight_bits: "
            "BITS to the file, and add --config-dir . model=FILE without its ending"
        )
    cache = "--kv-cache-dtype fp8 to the command, and " if caches_fp8(named) else ""
    return f"add {cache}model={published_as(model, by_name.end)}"


def _changed(shape: ModelSpec, name: Name) -> ModelSpec:
    """The shape with the longest sequence and the weights that a name says."""
    if name.max_len is not None:
        shape = replace(shape, max_len=name.max_len)
    if name.weight_bits is None:
        return shape
    return replace(shape, weight_bits=name.weight_bits, fp8_products=name.fp8_products)


def cached_config(name: str) -> Path | None:
    """The newest config.json of a model in the cache of Hugging Face (HF_HUB_CACHE, HF_HOME)."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    folder = hub / f"models--{name.replace('/', '--')}" / "snapshots"
    paths = sorted(folder.glob("*/config.json"), key=lambda path: path.stat().st_mtime)
    return paths[-1] if paths else None


def gpu_named(name: str | None, folders: Sequence[Path] = ()) -> GpuSpec:
    """The data sheet of a GPU by our name, or in a YAML file of that form; the command itself does
    not say on which it runs.
    """
    files = dict(files_of("gpu", folders))
    if name is not None and name.endswith(".yaml") and Path(name).is_file():
        files[name] = Path(name)
    choices = ", ".join(sorted(files))
    if name is not None and name not in files:
        near = did_you_mean(name, files)
        remedy = "" if near else f"choose from {choices}"
        raise InputError(key="gpu", value=name, problem=f"is no GPU{near}", remedy=remedy)
    if name is None:
        raise InputError(
            key="gpu",
            problem="the server's command does not say on which GPU",
            remedy=f"add gpu=NAME of {choices}",
        )
    sheet = yaml_values(files[name].read_text(encoding="utf-8"))
    stated = {key: value for key, value in sheet.items() if key not in ("defaults", "_target_")}
    return read(GpuSpec, stated, "gpu")
