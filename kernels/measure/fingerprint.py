"""Which device and which software a measurement comes from."""

import csv
import datetime
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kernels.launch.compile import require_gpu


def fingerprint() -> dict[str, Any]:
    """Device, driver, library versions and date, as they go into a profile or beside a table."""
    cupy = require_gpu()
    properties, runtime = torch.cuda.get_device_properties(0), cupy.cuda.runtime
    return {
        "source": "measured",
        "device": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "driver_cuda": _version(runtime.driverGetVersion()),
        "runtime_cuda": _version(runtime.runtimeGetVersion()),
        "nvrtc": "{}.{}".format(*cupy.cuda.nvrtc.getVersion()),
        "torch": torch.__version__,
        "cupy": cupy.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def write_measured(path: Path, fields: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """A CSV whose first line says where and when its rows were measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    about = fingerprint()
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# {about['device']}, torch {about['torch']}, CUDA {about['runtime_cuda']}, {about['date']}\n")
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerows(rows)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
