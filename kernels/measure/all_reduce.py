"""All-reduce by bytes over the GPUs of this machine, one process each (NCCL through torch, in CUDA graphs)."""

import socket
from collections.abc import Sequence
from multiprocessing import get_context
from typing import Any

import torch

from kernels.measure.sweeps import Point, point
from kernels.measure.timing import time_graph

BYTES = tuple(1 << e for e in range(11, 27))  # 2 KiB to 64 MiB of fp16


def all_reduce(num_gpus: int) -> list[Point]:
    """Points (GPUs, bytes) as rank 0 sees them, on as many of num_gpus as there are; empty where that is one."""
    num_gpus = min(num_gpus, torch.cuda.device_count())
    if num_gpus < 2:
        return []
    context = get_context("spawn")
    results: Any = context.Queue()
    port = _free_port()
    ranks = [context.Process(target=_rank, args=(rank, num_gpus, port, BYTES, results)) for rank in range(num_gpus)]
    for process in ranks:
        process.start()
    points: list[Point] = results.get(timeout=120)
    for process in ranks:
        process.join()
    return points


def _rank(rank: int, num_gpus: int, port: int, sizes: Sequence[int], results: Any) -> None:
    torch.cuda.set_device(rank)
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("nccl", init_method=address, rank=rank, world_size=num_gpus)
    points = []
    for size in sizes:
        x = torch.zeros(size // 2, dtype=torch.float16, device="cuda")
        calls = [lambda x=x: torch.distributed.all_reduce(x)] * 20
        # A fixed number of replays: all ranks must enter the same collectives.
        points.append(point(num_gpus, size, timing=time_graph(calls, 9, min_us=0.0)))
    torch.distributed.barrier()
    if rank == 0:
        results.put(points)
    torch.distributed.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
