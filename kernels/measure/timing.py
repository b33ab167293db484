"""Time per call of GPU work: CUDA graphs between events, inputs rotated past the L2 cache, median with spread."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

L2_ROTATION_BYTES = 256 << 20  # several times the largest L2 cache


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds per call: median over replays, and the 10th and 90th percentile."""

    median_us: float
    low_us: float
    high_us: float

    def __str__(self) -> str:
        return f"{self.median_us:.1f} us [{self.low_us:.1f}, {self.high_us:.1f}]"


def num_rotations(bytes_per_call: int) -> int:
    """Input sets that together are larger than the L2 cache."""
    return int(min(64, max(2, -(-L2_ROTATION_BYTES // max(1, bytes_per_call)))))


def warm_up(seconds: float = 1.0) -> None:
    """Works the GPU until its clocks have settled; a first measurement after idling reads up to 10% high."""
    x = torch.randn(4096, 4096, dtype=torch.float16, device="cuda")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            torch.mm(x, x)
        torch.cuda.synchronize()


def time_graph(calls: Sequence[Callable[[], None]], replays: int = 11, min_us: float = 1500.0) -> Timing:
    """Times calls that run one after the other; each gets its own inputs, all are captured in one graph.

    The sequence is repeated until a replay takes about min_us, so that event resolution does not show.
    """
    graph, elapsed = _capture(calls, 1), 0.0
    elapsed = np.median([_replay_us(graph) for _ in range(3)])
    repeats = int(max(1, min(min_us // max(elapsed, 1.0), 2000 // len(calls))))
    if repeats > 1:
        graph = _capture(calls, repeats)
    _replay_us(graph)
    samples = np.array([_replay_us(graph) for _ in range(replays)]) / (len(calls) * repeats)
    return Timing(float(np.median(samples)), *(float(x) for x in np.percentile(samples, [10, 90])))


def time_stream(call: Callable[[], None], repeats: int = 5) -> Timing:
    """Times work that cannot be captured, such as copies issued one by one; the host's part is included."""
    call()
    samples = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        call()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e3)
    return Timing(float(np.median(samples)), *(float(x) for x in np.percentile(samples, [10, 90])))


def _capture(calls: Sequence[Callable[[], None]], repeats: int) -> torch.cuda.CUDAGraph:
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:  # compile, load and allocate outside the capture
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(repeats):
            for call in calls:
                call()
    return graph


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3
