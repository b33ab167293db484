"""Time per call of GPU work: CUDA graphs between events, inputs rotated past the L2 cache, median
with spread.

And what every `testbed gpu measure NAME` is: columns, a row for each point, and the device that
tables and profiles record.
"""

import csv
import datetime
import gc
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from testbed.core.specs import GIB
from testbed.kernels.launch.compile import require_gpu

L2_ROTATION_BYTES = 256 << 20  # several times the largest L2 cache


class Timing(NamedTuple):
    """Microseconds per call: median over replays, and the 10th and 90th percentile."""

    median_us: float
    low_us: float
    high_us: float

    @classmethod
    def of(cls, samples_us: Sequence[float] | NDArray[np.float64]) -> "Timing":
        """The percentiles of measured samples."""
        return cls(*np.percentile(samples_us, [50, 10, 90]).tolist())

    def per(self, parts: int) -> "Timing":
        """The percentiles of one of `parts` equal parts."""
        return Timing(*(us / parts for us in self))

    def __str__(self) -> str:
        return f"{self.median_us:.1f} us [{self.low_us:.1f}, {self.high_us:.1f}]"


def num_rotations(bytes_per_call: int) -> int:
    """Number of input sets whose total size exceeds the L2 cache."""
    return int(min(64, max(2, -(-L2_ROTATION_BYTES // max(1, bytes_per_call)))))


def warm_up(seconds: float = 1.0) -> None:
    """Load the GPU until its clocks have settled; a first measurement after idling is up to 10% too
    high.
    """
    x = torch.randn(4096, 4096, dtype=torch.float16, device="cuda")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            torch.mm(x, x)
        torch.cuda.synchronize()


def time_graph(
    calls: Sequence[Callable[[], object]], replays: int = 11, min_us: float = 1500.0
) -> Timing:
    """Time calls that run in sequence, each with separate inputs, all captured in one graph.

    The sequence is repeated until a replay takes about min_us, so that event resolution does not
    matter.
    """
    graph = capture(calls, 1)
    elapsed = np.median([_elapsed_us(graph.replay) for _ in range(3)])
    repeats = int(max(1, min(min_us // max(elapsed, 1.0), 2000 // len(calls))))
    if repeats > 1:
        del graph
        graph = capture(calls, repeats)
    _elapsed_us(graph.replay)
    samples = np.array([_elapsed_us(graph.replay) for _ in range(replays)]) / (len(calls) * repeats)
    return Timing.of(samples)


def time_stream(call: Callable[[], object], repeats: int = 5) -> Timing:
    """Time work that cannot be captured, such as single copies; host time is included."""
    call()
    return Timing.of([_elapsed_us(call) for _ in range(repeats)])


def num_gpus() -> int:
    """GPUs of this machine."""
    return torch.cuda.device_count()


def capture(
    calls: Sequence[Callable[[], object]],
    repeats: int,
    memory: Any = None,
    stream: torch.cuda.Stream | None = None,
) -> torch.cuda.CUDAGraph:
    """A graph of the calls, `repeats` times, in `memory` that it shares with others, if any.

    No garbage is collected meanwhile: graphs of an earlier engine, freed during a capture, would
    invalidate it. stream: of graphs that end together; from PyTorch 2.12 on the end of one frees
    the workspace of cuBLAS that all of its stream have.
    """
    stream = stream or _of_measurements()
    graph, collects = torch.cuda.CUDAGraph(), gc.isenabled()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:  # compile, load and allocate outside the capture
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    gc.disable()
    try:
        # The capture leaves out the work of other threads, such as NCCL's watch.
        with torch.cuda.graph(graph, memory, stream, capture_error_mode="thread_local"):
            for call in repeats * list(calls):
                call()
    finally:
        if collects:
            gc.enable()
    return graph


@cache
def _of_measurements() -> torch.cuda.Stream:
    """The stream of graphs that are measured, one at a time; cuBLAS keeps 32 MiB for each."""
    return torch.cuda.Stream()


def _elapsed_us(call: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def fingerprint() -> dict[str, Any]:
    """Device, host, driver, library versions and date, as recorded in profiles and tables."""
    cupy = require_gpu()
    properties, runtime = torch.cuda.get_device_properties(0), cupy.cuda.runtime
    return {
        "source": "measured",
        "device": properties.name,
        "host": host(),
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


def memory_gib() -> dict[str, float]:
    """GiB of the current device that are in use, by all processes, and those that PyTorch holds in
    this one: the difference is CUDA's, NCCL's, and of others.
    """
    free, total = torch.cuda.mem_get_info()
    used = {"used": total - free, "of_torch": torch.cuda.memory_reserved()}
    return {name: round(size / GIB, 3) for name, size in used.items()}


def host() -> str:
    """The host's processor by its own name, if the system has it, and its cores."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, 'unknown processor')}, {os.cpu_count()} cores"


def in_words(about: Mapping[str, object]) -> str:
    """All of a fingerprint in one line."""
    return ", ".join(f"{key} {value}" for key, value in about.items())


def file_name(profile: dict[str, Any]) -> str:
    """The file name of a shipped profile, such as h200-opt-13b-tp1.json."""
    device = profile["fingerprint"]["device"].removeprefix("NVIDIA ").lower().replace(" ", "-")
    return f"{device}-{profile['model']['name']}-tp{profile['num_gpus']}.json"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


class Measurement(NamedTuple):
    """One measurement; `rows` checks its options before it measures the first."""

    columns: str
    rows: Callable[..., Iterable[Sequence[Any]]]


def print_rows(command: str, measurement: Measurement, options: Mapping[str, Any]) -> None:
    """Print the device, the columns and every row as a CSV; floats have three decimals. options:
    the parameters of rows().
    """
    rows = measurement.rows(**options)
    warm_up()
    print(f"# testbed {command}, {in_words(fingerprint())}")
    print(measurement.columns)
    table = csv.writer(sys.stdout, lineterminator="\n")
    for row in rows:
        table.writerow([round(cell, 3) if isinstance(cell, float) else cell for cell in row])
        sys.stdout.flush()
