"""Model shapes and data sheets by the names that others use."""

from dataclasses import replace
from pathlib import Path

from testbed.core.config_model import read
from testbed.core.errors import InputError
from testbed.core.hf_config import model_of
from testbed.core.model_files import model_names
from testbed.core.shapes import read_model
from testbed.core.specs import GpuSpec, ModelSpec
from testbed.experiments.runs.choice_names import files_of
from testbed.experiments.runs.model_naming import name_of
from testbed.experiments.runs.yaml_values import yaml_values
from testbed.experiments.vllm_server import named
from testbed.traces.files import read_json

# Names on Hugging Face of models that ship, with the longest sequence if it is another.
ALIASES = {
    "llama-3.1-8b-instruct": ("llama-3-8b", 131_072),
    "meta-llama-3-8b": ("llama-3-8b", 8192),
    "llama-3.1-70b-instruct": ("llama-3-70b", 131_072),
}
OTHER_DEVICES = {
    "rtx pro 6000 blackwell": "rtx-pro-6000",
    "a100 80gb": "a100-80gb",
}  # more names than in data sheets


def model_named(name: str) -> ModelSpec:
    """A model by a name of the config tree or of Hugging Face, or by the path of its config.json or
    model file.
    """
    if Path(name).is_file():
        return model_of(Path(name))
    short, model, max_len = known_name(name)
    if model not in model_names():
        listed = ", ".join(model_names())
        raise InputError(
            key="--model",
            value=name,
            problem=f"not the path of a config.json, and none of {listed}",
            remedy="give the path of one",
        )
    spec = read_model(model)
    return spec if max_len is None else replace(spec, name=short, max_len=max_len)


def known_name(name: str) -> tuple[str, str, int | None]:
    """A name that others use, without its owner; ours for it, and the longest sequence if it is
    another.
    """
    short = name.rpartition("/")[2].lower()
    if short in ALIASES:
        return short, *ALIASES[short]
    ours = name_of(name, model_names())
    return short, ours.model, ours.max_len


def gpu_named(name: str) -> GpuSpec:
    """A data sheet of the config tree, or a JSON file with the values of one."""
    if Path(name).is_file():
        return read(GpuSpec, read_json(name), "gpu")
    return named.gpu_named(name)


def gpu_of_device(device: str) -> GpuSpec | None:
    """The data sheet of a device by our name or the one its driver gives it, None if the config
    tree has none.
    """
    sheets = {
        name: yaml_values(path.read_text(encoding="utf-8"))
        for name, path in files_of("gpu").items()
    }
    names = {
        str(sheet["device"]).lower(): name for name, sheet in sheets.items() if sheet.get("device")
    }
    sheet_name = device if device in sheets else names.get(device.lower())
    if sheet_name is None:
        others = (name for part, name in OTHER_DEVICES.items() if part in device.lower())
        sheet_name = next(others, None)
    return gpu_named(sheet_name) if sheet_name else None


def data_sheet(name: str | None, device: str, source: object) -> GpuSpec | None:
    """The data sheet that is asked for, else the device's own, None if there is none: of no other
    device.
    """
    own_sheet = gpu_of_device(device)
    if name is None:
        return own_sheet
    gpu = gpu_named(name)
    is_other = (
        gpu.device not in ("", device)
        if Path(name).is_file()
        else own_sheet and own_sheet.name != gpu.name
    )
    if is_other:
        raise InputError(
            key=source,
            problem=f"was measured on {device}, which is not --gpu {name}",
            remedy="leave --gpu out; cost=auto derives a profile's times for another GPU",
        )
    return gpu
