"""Costs that no kernel's own time shows: launches, graph starts, the host's turn between two iterations."""

import time
from collections.abc import Callable

import numpy as np
import torch

from kernels.measure.sweeps import Point, point
from kernels.measure.timing import Timing, time_graph


def overheads() -> list[Point]:
    """A kernel inside a graph, a launch from the host, and a graph iteration with its inputs and outputs moved."""
    x = torch.zeros(32, device="cuda")
    tokens, host = torch.zeros(256, dtype=torch.int64, device="cuda"), torch.zeros(256, dtype=torch.int64).pin_memory()
    graph = torch.cuda.CUDAGraph()
    x.add_(1)
    with torch.cuda.graph(graph):
        x.add_(1)

    def iteration() -> None:
        tokens.copy_(host, non_blocking=True)
        graph.replay()
        host.copy_(tokens, non_blocking=True)
        torch.cuda.synchronize()

    return [
        point("graph_kernel", timing=time_graph([lambda: x.add_(1)] * 64)),
        point("stream_launch", timing=_wall(lambda: x.add_(1), 2000)),
        point("iteration", timing=_wall(iteration, 1)),
    ]


def _wall(call: Callable[[], object], repeats: int) -> Timing:
    samples = []
    for _ in range(50):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - start) / repeats * 1e6)
        if repeats > 1 and len(samples) == 10:
            break
    return Timing(float(np.median(samples)), *(float(x) for x in np.percentile(samples, [10, 90])))
