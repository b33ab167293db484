"""Reads (and, for tests and random models, writes) safetensors files: eight bytes of length, JSON, then raw values."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from testbed.core.errors import InputError

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class SafetensorsFolder:
    """All tensors of a folder's *.safetensors files by name; each is read from its file when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._places: dict[str, tuple[Path, int, dict[str, Any]]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            start, header = read_header(path)
            self._places.update({name: (path, start, entry) for name, entry in header.items()})
        if not self._places:
            raise InputError(f"{folder}: no *.safetensors file here; give a Hugging Face model folder")

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def read(self, name: str) -> Tensor:
        """The tensor of that name, on the host, in the file's type."""
        if name not in self._places:
            raise InputError(f"{self.folder}: the tensor {name} is in no *.safetensors file")
        path, start, entry = self._places[name]
        if entry["dtype"] not in DTYPES:
            raise InputError(f"{path}: {name} is of type {entry['dtype']}; the engine reads {', '.join(DTYPES)}")
        first, end = entry["data_offsets"]
        with path.open("rb") as file:
            file.seek(start + first)
            content = bytearray(file.read(end - first))
        return torch.frombuffer(content, dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])


def read_header(path: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """Where the values of a file start, and its entries by tensor name."""
    with path.open("rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return 8 + length, header


def write_file(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A safetensors file with these tensors."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    header, at = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().view(torch.uint8).numpy().tobytes())
