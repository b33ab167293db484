"""All-reduce times by bytes over the GPUs of one host: one process per GPU, NCCL through torch.

`testbed gpu measure all-reduce --gpus 2 4 8` measures every combination of GPUs, type, bytes and
way: launched one by one (eager) or in a CUDA graph, and in a graph between the matrix products of
OPT-175B's layer (the time that the all-reduces add to these products). It prints the median and
the 10th and 90th percentile in microseconds. For each number of GPUs it then compares NCCL's time
in graphs with the time that the cost model predicts from fewer GPUs.
"""

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from multiprocessing import get_context
from queue import Empty
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from testbed.core.errors import InputError
from testbed.core.shapes import read_model
from testbed.core.specs import GpuSpec, ServerSpec
from testbed.cost.all_reduce_times import all_reduce as predicted_ps
from testbed.kernels.measure.sweeps import Point, point
from testbed.kernels.measure.timing import Measurement, Timing, time_graph, time_stream, warm_up

BYTES = tuple(1 << e for e in range(11, 27))  # 2 KiB to 64 MiB
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
CALLS, REPLAYS = 20, 9  # fixed numbers: all ranks must enter the same collectives
TOKENS = (1, 8, 32, 128, 512, 2048)
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


class Case(NamedTuple):
    """One row of the table."""

    num_gpus: int
    dtype: str
    num_bytes: int
    way: str  # eager, graph, layer


def all_reduce(num_gpus: int) -> list[Point]:
    """Points (GPUs, bytes) of fp16 in graphs for a profile, on at most num_gpus GPUs; empty if
    there is only one.
    """
    num_gpus = min(num_gpus, torch.cuda.device_count())
    if num_gpus < 2:
        return []
    cases = [Case(num_gpus, "fp16", size, "graph") for size in BYTES]
    return [
        point(num_gpus, case.num_bytes, timing=timing) for case, timing in measure(num_gpus, cases)
    ]


def all_cases(num_gpus: int) -> list[Case]:
    """Every case of num_gpus GPUs; a layer's all-reduce has one hidden vector per token."""
    axes = product(TYPES, ("eager", "graph"), BYTES[2:])
    alone = [Case(num_gpus, dtype, size, way) for dtype, way, size in axes]
    width = 2 * read_model("opt-175b").hidden_size
    return [*alone, *(Case(num_gpus, "fp16", tokens * width, "layer") for tokens in TOKENS)]


def measure(num_gpus: int, cases: Sequence[Case]) -> list[tuple[Case, Timing]]:
    """Times of the cases as rank 0 measures them; raises InputError if a rank fails."""
    context = get_context("spawn")
    results: Any = context.Queue()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = int(server.getsockname()[1])
    ranks = [
        context.Process(target=_rank, args=(rank, num_gpus, port, cases, results))
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
    return list(zip(cases, timings, strict=True))


def _rank(rank: int, num_gpus: int, port: int, cases: Sequence[Case], results: Any) -> None:
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast off
    torch.cuda.set_device(rank)
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group(
        "nccl", init_method=address, rank=rank, world_size=num_gpus
    )
    warm_up()
    timings = [layer_timing(case) if case.way == "layer" else alone_timing(case) for case in cases]
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

    return time_stream(eager, REPLAYS).per(CALLS)


def layer_timing(case: Case) -> Timing:
    """The time that each of a layer's two all-reduces adds to its matrix products, sharded over the
    GPUs (Megatron-LM).
    """
    hidden = read_model("opt-175b").hidden_size
    x = _random(case.num_bytes // 2 // hidden, hidden)
    wide = [_random(n * hidden // case.num_gpus, hidden) for n in (3, 4)]
    back = [_random(hidden, n * hidden // case.num_gpus) for n in (1, 4)]

    def half(
        up: torch.Tensor, down: torch.Tensor, finish: Callable[[torch.Tensor], object]
    ) -> None:
        finish(F.linear(F.linear(x, up)[:, : down.shape[1]], down))

    def layers(finish: Callable[[torch.Tensor], object]) -> Sequence[Callable[[], None]]:
        return [partial(half, up, down, finish) for up, down in zip(wide, back, strict=True)] * (
            CALLS // 2
        )

    products = time_graph(layers(lambda y: None), REPLAYS, min_us=0.0)
    both = time_graph(layers(torch.distributed.all_reduce), REPLAYS, min_us=0.0)
    return Timing(*(us - products.median_us for us in both))


def _random(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, dtype=torch.float16, device="cuda") * 0.01


def predictions(points: Mapping[int, Sequence[Point]]) -> list[tuple[int, int, float, float]]:
    """GPUs, bytes, measured and predicted us: each number of GPUs from the largest smaller one that
    was measured.

    The prediction is the cost model's: times scale by a ring's share (n - 1) / n
    (`testbed.cost.all_reduce_times`).
    """
    rows = []
    for below, num_gpus in zip(sorted(points), sorted(points)[1:], strict=False):
        section = {
            "unit": "one all-reduce",
            "axes": ["num_gpus", "bytes"],
            "points": list(points[below]),
        }
        server = ServerSpec("measured", NO_DATA_SHEET, num_gpus)
        predict = predicted_ps({"sections": {"all_reduce": section}}, server)
        rows += [
            (num_gpus, int(size), float(us), predict(int(size)) / 1e6)
            for _, size, us, *_ in points[num_gpus]
        ]
    return rows


def require_gpus(num_gpus: Sequence[int], num_present: int) -> None:
    """Raises InputError if more GPUs are requested than there are, or fewer than two."""
    for number in num_gpus:
        if not 2 <= number <= num_present:
            raise InputError(
                key="--gpus",
                value=number,
                problem=f"this machine has {num_present} GPUs",
                remedy=f"choose from 2 to {num_present}",
            )


def rows(gpus: Sequence[int]) -> Iterator[Point]:
    """A row for each case on each number of GPUs; then the predictions, as comments."""
    require_gpus(gpus, torch.cuda.device_count())
    graphs: dict[int, list[Point]] = {}
    for number in sorted(set(gpus)):
        for case, timing in measure(number, all_cases(number)):
            yield point(*case, timing=timing)
            if (case.dtype, case.way) == ("fp16", "graph"):
                graphs.setdefault(number, []).append(point(number, case.num_bytes, timing=timing))
    print(f"# NCCL {torch.cuda.nccl.version()}, no multicast; predicted from fewer GPUs:")
    print("# num_gpus,bytes,measured_us,predicted_us,error_percent")
    for number, size, measured, predicted in predictions(graphs):
        print(
            f"# "
            f"{number},{size},{measured:.1f},{predicted:.1f},"
            f"{100 * (predicted / measured - 1):+.1f}"
        )


MEASUREMENT = Measurement("num_gpus,dtype,bytes,way,median_us,p10_us,p90_us", rows)
