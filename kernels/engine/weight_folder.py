"""Weights from a folder as Hugging Face writes it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from testbed.core.errors import InputError
from testbed.kernels.engine.architecture import Architecture
from testbed.kernels.engine.weights import WHOLE, Parts, Weights, Whole, assembled

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def load_weights(
    arch: Architecture, folder: Path, device: str, dtype: torch.dtype, part: Whole = WHOLE
) -> Weights:
    """The weights in a Hugging Face folder, or a part of them, on a device in a type. Raises
    InputError for a tensor that is missing, or has another shape than config.json says or an
    unknown type.
    """
    files = safetensors_of(folder)
    bare = arch.is_opt and "model.decoder.embed_tokens.weight" not in files

    def read(name: str) -> Tensor:
        if name not in files:
            raise InputError(key=folder, problem=f"the tensor {name} is in no *.safetensors file")
        tensor: Tensor = files[name].get_tensor(name)
        if tensor.dtype not in DTYPES:
            raise InputError(
                key=folder, problem=f"{name} of type {tensor.dtype}: is none of {DTYPES}"
            )
        return tensor

    def whole(name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = read(name.removeprefix("model.") if bare else name)
        if tuple(tensor.shape) != shape:
            raise InputError(
                key=folder,
                problem=f"{name} of shape {list(tensor.shape)}: config.json requires {list(shape)}",
            )
        return tensor

    def kv_scales() -> Tensor | None:
        """[num_layers, 2, num_kv_heads], if the folder has scales of K and V."""
        num_layers, num_heads = arch.spec.num_layers, arch.spec.num_kv_heads
        names = [f"model.layers.{i}.self_attn.{x}_scale" for i in range(num_layers) for x in "kv"]
        if not any(name in files for name in names):
            return None
        scales = torch.stack([read(name).float().flatten().expand(num_heads) for name in names])
        return part.cut_kv_heads(scales.view(num_layers, 2, num_heads))

    return replace(assembled(arch, Parts(whole, part, device, dtype)), kv_scales=kv_scales())


def safetensors_of(folder: Path) -> dict[str, Any]:
    """The open file of each tensor in a folder's *.safetensors files, by the tensor's name."""
    try:
        from safetensors import safe_open
    except ModuleNotFoundError:
        raise InputError(
            key=folder,
            problem="needs safetensors",
            remedy="install kvcache-testbed[cuda13], or [cuda12]",
        ) from None
    files: list[Any] = [safe_open(path, "pt") for path in sorted(folder.glob("*.safetensors"))]
    file_of = {name: file for file in files for name in file.keys()}  # noqa: SIM118  (no mapping)
    if not file_of:
        raise InputError(
            key=folder,
            problem="no *.safetensors file here",
            remedy="give a Hugging Face model folder",
        )
    return file_of
