"""All-reduce times by bytes over the GPUs of one host: one process per GPU, NCCL through torch.

`testbed measure all-reduce --gpus 2 4 8` measures every combination of GPUs, type, bytes and way: launched one by one
(eager) or in a CUDA graph. It prints the median and the 10th and 90th percentile in microseconds.
"""

import os
import socket
from argparse import Namespace
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from queue import Empty
from typing import Any, NamedTuple

import torch

from testbed.command_line import Parser
from testbed.core.errors import InputError
from testbed.kernels.measure.sweeps import Point, point
from testbed.kernels.measure.table import Measurement
from testbed.kernels.measure.timing import Timing, time_graph, time_stream, warm_up

BYTES = tuple(1 << e for e in range(11, 27))  # 2 KiB to 64 MiB
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
CALLS, REPLAYS = 20, 9  # fixed numbers: all ranks must enter the same collectives
LIMIT_S = 180


class Case(NamedTuple):
    """One row of the table."""

    num_gpus: int
    dtype: str
    num_bytes: int
    way: str  # eager, graph


def all_reduce(num_gpus: int) -> list[Point]:
    """Points (GPUs, bytes) of fp16 in graphs for a profile, on at most num_gpus GPUs; empty where there is only one."""
    num_gpus = min(num_gpus, torch.cuda.device_count())
    if num_gpus < 2:
        return []
    cases = [Case(num_gpus, "fp16", size, "graph") for size in BYTES]
    return [point(num_gpus, case.num_bytes, timing=timing) for case, timing in measure(num_gpus, cases)]


def all_cases(num_gpus: int) -> list[Case]:
    """Every case of so many GPUs."""
    return [Case(num_gpus, dtype, size, way) for dtype in TYPES for way in ("eager", "graph") for size in BYTES[2:]]


def measure(num_gpus: int, cases: Sequence[Case]) -> list[tuple[Case, Timing]]:
    """Times of the cases as rank 0 measures them; raises InputError if a rank fails."""
    context = get_context("spawn")
    results: Any = context.Queue()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = int(server.getsockname()[1])
    ranks = [context.Process(target=_rank, args=(rank, num_gpus, port, cases, results)) for rank in range(num_gpus)]
    for process in ranks:
        process.start()
    try:
        timings: list[Timing] = results.get(timeout=LIMIT_S)
    except Empty:
        message = f"all-reduce over {num_gpus} GPUs: no result within {LIMIT_S} s (the ranks' errors are above)"
        raise InputError(message) from None
    finally:
        for process in ranks:
            process.join(timeout=10)
            process.kill()
    return list(zip(cases, timings, strict=True))


def _rank(rank: int, num_gpus: int, port: int, cases: Sequence[Case], results: Any) -> None:
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast off
    torch.cuda.set_device(rank)
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("nccl", init_method=address, rank=rank, world_size=num_gpus)
    warm_up()
    timings = [alone_timing(case) for case in cases]
    torch.distributed.barrier()
    if rank == 0:
        results.put(timings)
    torch.distributed.destroy_process_group()


def alone_timing(case: Case) -> Timing:
    """Time of one all-reduce among CALLS in sequence."""
    x = torch.zeros(case.num_bytes // 2, dtype=TYPES[case.dtype], device="cuda")
    if case.way == "graph":
        return time_graph([lambda: torch.distributed.all_reduce(x)] * CALLS, REPLAYS, min_us=0.0)

    def eager() -> None:
        for _ in range(CALLS):
            torch.distributed.all_reduce(x)

    timing = time_stream(eager, REPLAYS)
    return Timing(timing.median_us / CALLS, timing.low_us / CALLS, timing.high_us / CALLS)


def require_gpus(num_gpus: Sequence[int], found: int) -> None:
    """Raises InputError if more GPUs are requested than there are, or fewer than two."""
    for number in num_gpus:
        if not 2 <= number <= found:
            raise InputError(f"--gpus {number}: this machine has {found} GPUs (choose from 2 to {found})")


def rows(options: Namespace) -> Iterator[Point]:
    """A row for each case."""
    require_gpus(options.gpus, torch.cuda.device_count())
    return (point(*c, timing=t) for number in sorted(set(options.gpus)) for c, t in measure(number, all_cases(number)))


def add_arguments(parser: Parser) -> None:
    """--gpus."""
    parser.add_argument("--gpus", type=int, nargs="+", default=[2], metavar="N", help="numbers of GPUs (default: 2)")


MEASUREMENT = Measurement(__doc__, "num_gpus,dtype,bytes,way,median_us,p10_us,p90_us", rows, add_arguments)
