"""All-reduce times by bytes over the GPUs of one host, for a profile: one process per GPU, NCCL
through torch, fp16 in CUDA graphs.
"""

import os
import socket
from multiprocessing import get_context
from queue import Empty
from typing import Any

import torch

from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec
from testbed.kernels.measure.sweeps import Point, point
from testbed.kernels.measure.timing import Timing, time_graph, warm_up

BYTES = tuple(1 << e for e in range(11, 27))  # 2 KiB to 64 MiB
CALLS, REPLAYS = 20, 9  # fixed numbers: all ranks must enter the same collectives
LIMIT_S = 180
# The least that a data sheet may say; the cost model reads it only if nothing is measured.
NO_DATA_SHEET = GpuSpec(
    name="measured",
    memory_bytes=1 << 20,
    memory_bandwidth=1e9,
    fp16_flops=1e9,
    host_bandwidth=1e9,
    link_bandwidth=1e9,
)


def all_reduce(num_gpus: int) -> list[Point]:
    """Points (GPUs, bytes) on at most num_gpus GPUs; empty if there is only one."""
    num_gpus = min(num_gpus, torch.cuda.device_count())
    if num_gpus < 2:
        return []
    timings = zip(BYTES, measure(num_gpus), strict=True)
    return [point(num_gpus, num_bytes, timing=timing) for num_bytes, timing in timings]


def measure(num_gpus: int) -> list[Timing]:
    """Times of BYTES as rank 0 measures them; raises InputError if a rank fails."""
    context = get_context("spawn")
    results: Any = context.Queue()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = int(server.getsockname()[1])
    ranks = [
        context.Process(target=_rank, args=(rank, num_gpus, port, results))
        for rank in range(num_gpus)
    ]
    for process in ranks:
        process.start()
    try:
        timings: list[Timing] = results.get(timeout=LIMIT_S)
    except Empty:
        raise InputError(
            key=f"all-reduce over {num_gpus} GPUs",
            problem=f"no result within {LIMIT_S} s (the ranks' errors are above)",
        ) from None
    finally:
        for process in ranks:
            process.join(timeout=10)
            process.kill()
    return timings


def _rank(rank: int, num_gpus: int, port: int, results: Any) -> None:
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast off
    torch.cuda.set_device(rank)
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group(
        "nccl", init_method=address, rank=rank, world_size=num_gpus
    )
    warm_up()
    timings = [timing_of(num_bytes) for num_bytes in BYTES]
    torch.distributed.barrier()
    if rank == 0:
        results.put(timings)
    torch.distributed.destroy_process_group()


def timing_of(num_bytes: int) -> Timing:
    """Time of one all-reduce among CALLS in sequence."""
    x = torch.zeros(num_bytes // 2, dtype=torch.float16, device="cuda")
    return time_graph([lambda: torch.distributed.all_reduce(x)] * CALLS, REPLAYS, min_us=0.0)
