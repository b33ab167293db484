"""Several small arrays to the GPU in one transfer."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGN = 16


def upload(arrays: Mapping[str, NDArray[np.generic]], device: torch.device) -> dict[str, Tensor]:
    """The same arrays on `device`, as views of one buffer; the host does not wait."""
    sizes = {name: -(-array.nbytes // ALIGN) * ALIGN for name, array in arrays.items()}
    packed = torch.empty(sum(sizes.values()), dtype=torch.uint8, pin_memory=device.type == "cuda")
    raw, at, places = packed.numpy(), 0, {}
    for name, array in arrays.items():
        raw[at : at + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).ravel()
        places[name] = at
        at += sizes[name]
    there = packed.to(device, non_blocking=True)
    return {
        name: there[places[name] : places[name] + array.nbytes].view(_type(array)).view(array.shape)
        for name, array in arrays.items()
    }


def _type(array: NDArray[np.generic]) -> torch.dtype:
    return {"int32": torch.int32, "int64": torch.int64}[array.dtype.name]
