"""The device and software of a measurement, and the tables and profiles that record them."""

import csv
import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.kernels.launch.compile import require_gpu


def fingerprint() -> dict[str, Any]:
    """Device, driver, library versions and date, as recorded in profiles and tables."""
    import torch  # here, because reading tables must work without torch

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


def in_words(about: Mapping[str, object]) -> str:
    """All of a fingerprint in one line."""
    return ", ".join(f"{key} {value}" for key, value in about.items())


def in_short(about: Mapping[str, object]) -> str:
    """Device, torch, CUDA and date of a fingerprint."""
    return f"{about['device']}, torch {about['torch']}, CUDA {about['runtime_cuda']}, {about['date']}"


def write_rows(path: Path, rows: Sequence[Mapping[str, object]], about: str) -> None:
    """Write a CSV of rows with the same columns; its first line has the device and date of the measurement."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# {about}\n")
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def file_name(profile: dict[str, Any]) -> str:
    """The file name of a shipped profile, such as h200-opt-13b-tp1.json."""
    device = profile["fingerprint"]["device"].removeprefix("NVIDIA ").lower().replace(" ", "-")
    return f"{device}-{profile['model']['name']}-tp{profile['num_gpus']}.json"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
