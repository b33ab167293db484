"""Time of a transfer by number of extents, their bytes and the block size: GPU and host, or two
GPUs of one host.

`testbed gpu measure transfers --out FILE` moves extents between random places: out to pinned host
memory, in from it, or to a peer GPU. The copy engine takes one cudaMemcpyAsync per extent (copies),
or one cudaMemcpyBatchAsync for all (batch; needs CUDA 13). With gather a kernel collects the blocks
of all extents in a staging buffer, from which each extent is one copy (in: the inverse). With
kernel one of few thread blocks reads and writes the host's memory itself. Host time of the calls is
included. Each transfer is compared with its source, then timed alone and while
decode attention of Llama-3-8B's shape runs, whose slowdown is the last column. A run reads FILE
with `server.gpu.transfers=FILE`. If FILE exists, it keeps the ways and methods that are not
measured now.
"""

import ctypes
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from testbed.core.errors import InputError
from testbed.cost.link_times import AXES, KERNEL, SECTION
from testbed.cost.sections import FORMAT, dump
from testbed.kernels.launch.cache_ops import (
    MAX_GRID,
    bind_move_blocks,
    bind_stage_blocks,
    issue,
)
from testbed.kernels.launch.host_memory import pinned
from testbed.kernels.launch.launch import Launch
from testbed.kernels.measure.bench_inputs import DecodeInputs, Pools
from testbed.kernels.measure.sweeps import Point, point
from testbed.kernels.measure.timing import Measurement, Timing, capture, fingerprint, time_stream
from testbed.kernels.verify.reference import Shape

KIB, MIB = 1 << 10, 1 << 20
EXTENT_BYTES = (*(KIB << e for e in (1, 3, 4, 5, 6, 7, 8, 9, 10)), *(MIB << e for e in (2, 4, 6)))
NUM_EXTENTS = (1, 4, 16, 64, 256, 1024, 4096, 16384)
BLOCK_BYTES = (
    2 * KIB,
    32 * KIB,
    512 * KIB,
)  # of a block's K in one layer: 1, 16 and 256 tokens of Llama-3-8B
MAX_BYTES, SPACE = 512 * MIB, 1024 * MIB
WINDOW_US, DECODES_PER_GRAPH, REPEATS = 3000.0, 10, 3
COLUMNS = ("median_us", "low_us", "high_us", "during_decode_us", "decode_slowdown")
Pairs = list[tuple[int, int]]
Call = Callable[[], object]
Step = Callable[[int], object]  # on a stream


class Case(NamedTuple):
    """One point: method (copies, batch, gather, kernel), way (out, in, peer); block_bytes is 0
    if an extent is one block.
    """

    method: str
    way: str
    num_extents: int
    extent_bytes: int
    block_bytes: int


def cases(way: str) -> Iterator[Case]:
    """Every point of a way whose bytes fit."""
    pairs = product(EXTENT_BYTES, NUM_EXTENTS)
    sizes = [(count, size) for size, count in pairs if count * size <= MAX_BYTES]
    for method in ("copies", "batch", *([] if way == "peer" else [KERNEL])):
        yield from (
            Case(method=method, way=way, num_extents=count, extent_bytes=size, block_bytes=0)
            for count, size in sizes
        )
    for block in BLOCK_BYTES:
        yield from (
            Case(method="gather", way=way, num_extents=count, extent_bytes=size, block_bytes=block)
            for count, size in sizes
            if size >= block
        )


class Memory:
    """Random bytes on this GPU (near) and on the other side of the link (far), and the staging
    buffer.
    """

    def __init__(self, way: str) -> None:
        words = torch.randint(-(1 << 15), 1 << 15, (SPACE // 2,), dtype=torch.int16, device="cuda")
        self.near = words.view(torch.float16)
        self.staging = torch.empty(MAX_BYTES // 2, dtype=torch.float16, device="cuda")
        if way == "peer":
            self.far = self.near.flip(0).to("cuda:1")  # torch gives each GPU access to the other
        else:
            self.far = pinned((SPACE // 2,), torch.float16)
            self.far.copy_(self.near.flip(0))


class Transfer:
    """One case's transfer between random cells: `call` issues it on the current stream, `is_right`
    compares bytes.
    """

    def __init__(self, case: Case, memory: Memory) -> None:
        self.case, self.memory = case, memory
        rng = np.random.default_rng(case.num_extents * 31 + case.extent_bytes + case.block_bytes)
        self.block = case.block_bytes or case.extent_bytes
        self.blocks = rng.permutation(SPACE // self.block)[
            : case.num_extents * case.extent_bytes // self.block
        ]
        self.extents = rng.permutation(SPACE // case.extent_bytes)[: case.num_extents]
        gathers, is_in = case.method == "gather", case.way == "in"
        cells = (
            np.arange(case.num_extents) * case.extent_bytes if gathers else self.blocks * self.block
        )
        near = (cells + (memory.staging if gathers else memory.near).data_ptr()).tolist()
        far = (self.extents * case.extent_bytes + memory.far.data_ptr()).tolist()
        pairs = list(zip(near, far, strict=True) if is_in else zip(far, near, strict=True))
        one_by_one = partial(
            issue, [(target, source, case.extent_bytes) for target, source in pairs]
        )
        if case.method == KERNEL:
            self.steps: list[Step] = [self._by_kernel()]
            return
        copy = batch_of(pairs, case.extent_bytes) if case.method == "batch" else one_by_one
        self.ids = torch.from_numpy(self.blocks.astype(np.int32)).cuda()
        staged = list(self._staged()) if gathers else []
        self.steps = [copy, *staged] if is_in else [*staged, copy]

    def call(self) -> None:
        """Issue the transfer."""
        stream = torch.cuda.current_stream().cuda_stream
        for step in self.steps:
            step(stream)

    def _by_kernel(self) -> Launch:
        shape = (1, self.block // 256, 128)
        pairs = np.stack([self.blocks, self.extents], 1).astype(np.int32)
        self.ids = torch.from_numpy(pairs).cuda()
        pool, host = self.memory.near.view(1, -1, *shape), self.memory.far.view(-1, 1, *shape)
        return bind_move_blocks(pool, host, self.ids, self.case.way != "in")

    def _staged(self) -> Iterator[Launch]:
        shape = (1, self.block // 256, 128)
        pool, staging = (
            self.memory.near.view(1, -1, *shape),
            self.memory.staging.view(-1, 1, *shape),
        )
        for first in range(0, len(self.ids), MAX_GRID):
            ids = self.ids[first : first + MAX_GRID]
            yield bind_stage_blocks(pool, staging[first:], ids, self.case.way != "in")

    def is_right(self) -> bool:
        """True if some of the extents have arrived, after `call` has ended."""
        per_extent, cell = self.case.extent_bytes // self.block, self.block // 2
        for at in {0, len(self.extents) // 2, len(self.extents) - 1}:
            blocks = self.blocks[at * per_extent : (at + 1) * per_extent]
            near = torch.cat(
                [self.memory.near[b * cell : (b + 1) * cell] for b in blocks[:64].tolist()]
            )
            first = int(self.extents[at]) * self.case.extent_bytes // 2
            far = self.memory.far[first : first + len(near)]
            if not torch.equal(near.cpu().view(torch.int16), far.cpu().view(torch.int16)):
                return False
        return True


def batch_of(pairs: Pairs, num_bytes: int) -> Step:
    """One cudaMemcpyBatchAsync for all (target, source)."""
    targets, sources = np.array(pairs, np.uint64).T.copy()
    sizes = np.full(len(pairs), num_bytes, np.uint64)
    in_stream_order, first = (
        (ctypes.c_int * 6)(1),
        ctypes.c_size_t(0),
    )  # cudaMemcpyAttributes: order, two hints, flags
    copy = ctypes.CDLL("libcudart.so.13").cudaMemcpyBatchAsync
    arrays = [ctypes.c_void_p(array.ctypes.data) for array in (targets, sources, sizes)]
    kept = targets, sources, sizes

    def call(stream: int) -> None:
        count, num_attrs = ctypes.c_size_t(len(kept[0])), ctypes.c_size_t(1)
        ends = (
            ctypes.byref(in_stream_order),
            ctypes.byref(first),
            num_attrs,
            ctypes.c_void_p(stream),
        )
        if error := copy(*arrays, count, *ends):
            raise InputError(
                key="cudaMemcpyBatchAsync",
                problem=f"error {error}",
                remedy="leave batch out of --methods",
            )

    return call


class DecodeLoad:
    """Decode attention of 32 sequences of 1,024 tokens, replayed as a graph on a stream of its
    own.
    """

    def __init__(self) -> None:
        self.calls = DecodeInputs(Pools(1 << 30), Shape(32, 8, 128), [1024] * 32).paged()
        calls = [self.calls[i % len(self.calls)] for i in range(DECODES_PER_GRAPH)]
        self.graph = capture(calls, 1)
        _, _, *ends = self._times_us(lambda: None, 1, 64, torch.cuda.Stream())
        self.alone_us = float(np.median(np.diff(ends)))

    def during(self, call: Call, alone_us: float, stream: torch.cuda.Stream) -> tuple[float, float]:
        """Microseconds of a transfer while decodes run, and how many times as long a decode takes
        meanwhile.
        """
        times = max(1, round(WINDOW_US / alone_us))
        for margin in (2.5, 6.0, 15.0):  # transfers take longer than alone
            begin, end, *ends = self._times_us(
                call, times, round(margin * times * alone_us / self.alone_us) + 8, stream
            )
            inside = [b - a for a, b in pairwise(ends) if a >= begin and b <= end]
            if inside and ends[-1] >= end:
                return (end - begin) / times, float(np.median(inside)) / self.alone_us
        raise InputError(key="the decodes", problem="ended before the transfers; nothing was kept")

    def _times_us(
        self, call: Call, times: int, replays: int, stream: torch.cuda.Stream
    ) -> list[float]:
        begin, end, *marks = (torch.cuda.Event(enable_timing=True) for _ in range(replays + 3))
        torch.cuda.synchronize()
        marks[0].record()
        for mark in marks[1:]:
            self.graph.replay()
            mark.record()
        with torch.cuda.stream(stream):
            begin.record()
            for _ in range(times):
                call()
            end.record()
        torch.cuda.synchronize()
        return [1e3 * marks[0].elapsed_time(event) for event in (begin, end, *marks)]


def measure(case: Case, memory: Memory, load: DecodeLoad, stream: torch.cuda.Stream) -> Point:
    """Time one case; raises InputError if it moves the wrong bytes."""
    transfer = Transfer(case, memory)
    with torch.cuda.stream(stream):
        transfer.call()
        stream.synchronize()
        if not transfer.is_right():
            raise InputError(
                key=str(case), problem="the transfer moved wrong bytes; nothing was kept"
            )
        alone: Timing = time_stream(transfer.call, REPEATS)
    during_us, slowdown = load.during(transfer.call, alone.median_us, stream)
    return [*point(*case, timing=alone), round(during_us, 3), round(slowdown, 3)]


def hardware_file(points: list[Point], before: Path) -> dict[str, object]:
    """The measured points as a file, after those of other ways and methods that it has already."""
    about, others = fingerprint(), list[Point]()
    if before.is_file():
        old = json.loads(before.read_text(encoding="utf-8"))
        if old["fingerprint"]["device"] != about["device"]:
            raise InputError(
                key="--out",
                value=before,
                problem=f"was measured on {old['fingerprint']['device']}",
                remedy="choose another file",
            )
        measured = {tuple(row[:2]) for row in points}
        others = [
            row for row in old["sections"][SECTION]["points"] if tuple(row[:2]) not in measured
        ]
    section = {
        "covers": "one GPU's link, host part included",
        "axes": AXES,
        "columns": list(COLUMNS),
    }
    return {
        "format": FORMAT,
        "fingerprint": about,
        "sections": {SECTION: {**section, "points": others + points}},
    }


def rows(ways: Sequence[str], methods: Sequence[str], out: Path) -> Iterator[Point]:
    """A row for each case; then the file `out` is written. ways: out, in, peer; methods: copies,
    batch, gather, kernel.
    """
    if "peer" in ways and torch.cuda.device_count() < 2:
        raise InputError(key="--ways", value="peer", problem="needs two GPUs, this machine has one")
    load, stream, points = DecodeLoad(), torch.cuda.Stream(), list[Point]()
    for way in ways:
        memory = Memory(way)
        for case in cases(way):
            if case.method in methods:
                points.append(measure(case, memory, load, stream))
                yield points[-1]
        del memory
    out.write_text(dump(hardware_file(points, out)), encoding="utf-8")


MEASUREMENT = Measurement(",".join((*AXES, *COLUMNS)), rows)
