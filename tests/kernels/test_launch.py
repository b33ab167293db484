"""Launches without a GPU: what the driver gets, exactly; how decode is cut, which prefill kernel
can run.
"""

import ctypes
from hashlib import sha256
from itertools import product
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from kept import check_lines
from test_refusals import BASE, CALLS, WRAPPERS, FakeArray, made

pytest.importorskip("torch", reason="torch is not installed")

import torch

from testbed.kernels.engine import maths
from testbed.kernels.launch import attention, cache_ops, prefill_attention
from testbed.kernels.launch import launch as module
from testbed.kernels.launch.attention import ENDLESS, Shapes
from testbed.kernels.launch.decode_plan import CTAS_PER_SM, MAX_CHUNKS, MAX_WAVE, TILE, plan_decode
from testbed.kernels.launch.launch import Launch, packed
from testbed.kernels.launch.prefill_attention import (
    BLOCK_SIZES,
    constants,
    evenly,
    fastest,
    origin_of,
    takes,
)


def test_arguments_are_packed_in_8_byte_cells():
    cells = (
        packed([1 << 40, 0, np.float32(1.5), np.int32(-3), np.int64(-(1 << 40))])
        .view(np.uint8)
        .reshape(-1, 8)
    )
    kinds = (np.uint64, np.uint64, np.float32, np.int32, np.int64)
    assert [cell.view(kind)[0] for cell, kind in zip(cells, kinds, strict=True)] == [
        1 << 40,
        0,
        1.5,
        -3,
        -(1 << 40),
    ]
    with pytest.raises(OverflowError):
        packed([-1])


def test_launch_passes_argument_addresses_to_the_driver(monkeypatch):
    seen = []

    def driver(function, *rest):
        *shape, stream, arguments, extra = rest
        addresses = (ctypes.c_uint64 * 3).from_address(arguments)
        pointers = [ctypes.c_uint64.from_address(at).value for at in addresses[:2]]
        seen.append(
            (
                function,
                shape,
                stream,
                pointers,
                ctypes.c_int32.from_address(addresses[2]).value,
                extra,
            )
        )

    fake = SimpleNamespace(cuda=SimpleNamespace(driver=SimpleNamespace(launchKernel=driver)))
    monkeypatch.setattr(module, "require_gpu", lambda: fake)
    bound = Launch(
        SimpleNamespace(kernel=SimpleNamespace(ptr=77)), (5, 2), 128, (11, 22, np.int32(-4)), 1024
    )
    bound(900)
    bound.point(1, 33)
    bound(901)
    shape = [5, 2, 1, 128, 1, 1, 1024]
    assert seen == [(77, shape, 900, [11, 22], -4, 0), (77, shape, 901, [11, 33], -4, 0)]


def test_immediate_launch_uses_the_stream_of_its_output(monkeypatch):
    seen = []

    class Bound:
        def __init__(self, threads):
            self.threads = threads

        def __call__(self, stream):
            seen.append(stream)

    launch = module.at_once(lambda out, q, threads: Bound(threads))
    monkeypatch.setattr(module, "stream_pointer", lambda array: f"stream of {array}")
    launch("out", "q", 128)
    launch(q="q", out="another", threads=128)
    launch("out", "q", 0)  # nobody's grid
    assert seen == ["stream of out", "stream of another"]


ENDS = (
    ((3, 7, 2, 16, 64), 1 << 20),
    ((2, 3, 2, 16, 64), 1 << 30),
)  # a pool, and where its blocks are gathered


def test_driver_gets_exactly_the_launches_that_are_kept(
    request, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = []

    def load(source, name, **defines):
        return SimpleNamespace(text=f"{source} {name} {defines}")

    def bound(kernel, grid, threads, arguments, shared_bytes=0):
        assert getattr(kernel, "max_dynamic_shared_size_bytes", 1 << 20) >= shared_bytes
        cells = [f"{one:.6g}" if isinstance(one, np.floating) else int(one) for one in arguments]
        lines.append(
            f"{kernel.text}, grid {tuple(grid)} of {threads}, {shared_bytes} bytes: {cells}"
        )
        return Mock(threads=threads)

    stream, runtime = SimpleNamespace(ptr=5), SimpleNamespace(getDevice=lambda: 0)
    cuda = SimpleNamespace(runtime=runtime, get_current_stream=lambda: stream)
    zeros = lambda *array: lines.append(array) or FakeArray(*array, pointer=len(lines) << 20)  # noqa: E731
    gpu = SimpleNamespace(cuda=cuda, zeros=zeros)
    fakes = {
        "load": load,
        "Launch": bound,
        "require_gpu": lambda: gpu,
        "multiprocessors": lambda: 132,
        "compute_capability": lambda: 90,
        "counters": lambda device: (None, iter([64])),
        "rows_of_memory": lambda *key: SimpleNamespace(
            data=SimpleNamespace(ptr=hash(key[1:]) % 997)
        ),
    }
    for one in (attention, cache_ops, prefill_attention, maths, module):
        for name in fakes.keys() & vars(one).keys():
            monkeypatch.setattr(one, name, fakes[name])
    for name, call in CALLS.items():
        lines.append(f"{name}:")
        WRAPPERS[call["wrapper"]](**made(call))
    gpu.cuda.runtime.memcpyAsync = lambda *copied: lines.append(copied)
    ids = FakeArray((3,), "int32", pointer=1 << 10)
    monkeypatch.setattr(torch.Tensor, "data_ptr", lambda self: 1 << 40)
    for kind, to_host in (("float16", True), ("uint8", False)):
        lines.append(f"swaps of {kind}, to_host={to_host}, per block, then fused:")
        host = torch.zeros((9, 3, 2, 16, 64), dtype=getattr(torch, kind))
        pool, staging = (FakeArray(shape, kind, pointer=at) for shape, at in ENDS)
        cache_ops.swap_per_block(pool, host, [(2, 1), (6, 8)], to_host)
        cache_ops.swap_fused(pool, host, ids, [(5, 3), (0, 4), (6, 8)], staging, to_host)
    check_lines(lines, request, "launches.txt")


def test_decode_plans_are_valid_and_those_that_are_kept(request) -> None:
    around = [n + d for n in (2, 16, 256, 512, 1024, 2048, 4096, 8192, 65_536) for d in (-1, 0, 1)]
    cases = [
        *product((1, 2, 8, 31, 32, 33, 64, 132, 200), (1, 4, 8, 40), sorted(CTAS_PER_SM), around)
    ]
    plans = []
    for fp8, window, num_sms in (
        (False, 0, 132),
        (True, 0, 108),
        (False, 100, 78),
        (True, 2000, 132),
    ):
        for num_seqs, groups, head_size, longest in cases:
            plan = plan_decode(num_seqs, groups, head_size, longest, num_sms, fp8, window)
            assert (plan.chunk_tokens - (TILE if window else 0)) % (TILE * plan.num_warps) == 0
            assert 1 <= plan.num_chunks(longest, window) <= MAX_CHUNKS
            assert not plan.wave or num_seqs <= min(MAX_WAVE, num_sms * plan.ctas_per_sm // groups)
            plans.append((num_seqs, groups, head_size, longest, plan, plan.constants))
    shown = [
        f"{seqs} x {longest}, {groups} of {size}: {plan}"
        for seqs, groups, size, longest, plan, _ in plans[::37]
    ]
    check_lines([*shown, sha256(repr(plans).encode()).hexdigest()], request, "decode_plans.txt")


def shapes(head_size: int = 128, block_size: int = 16, scales: int = 0, window: int = 0) -> Shapes:
    return Shapes(100, 8, 2, head_size, 32000, block_size, 8 * head_size, 0, scales, window)


@pytest.mark.parametrize(
    ("head_size", "block_size", "pack", "window"),
    [(128, 16, True, 0), (64, 8, True, 9), (128, ENDLESS, False, 0), (64, 1, False, 0)],
)
def test_kernel_compiles_without_spills_or_serialized_wgmma(
    head_size, block_size, pack, window
) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from ptxas import resources

    defines = shapes(head_size, block_size, window=window).defines | constants(4, block_size, pack)
    (found,) = resources("prefill_tma.cu", defines, "sm_90a")
    assert (found.spill_bytes, found.notes) == (0, "")


def test_query_heads_are_packed_in_powers_of_two() -> None:
    assert [prefill_attention.packed(group, True) for group in (1, 2, 4, 7, 8, 16)] == [
        1,
        2,
        4,
        1,
        8,
        1,
    ]
    assert prefill_attention.packed(4, False) == 1


@pytest.mark.parametrize(
    ("pairs", "most", "size"),
    [
        (40, 12, 10),
        (160, 48, 40),
        (7, 8, 7),
        (640, 305, 214),
        (9, 8, 5),
        (1, 8, 1),
        (40, 3, 2),
        (41, 3, 3),
    ],
)
def test_work_groups_have_even_bounded_sizes(pairs: int, most: int, size: int) -> None:
    assert evenly(pairs, most) == size


def test_caches_must_fit_one_tensor_map() -> None:
    first, near = origin_of(BASE), [BASE, BASE + (1 << 33)]
    last = first + ((1 << 31) - 1 - shapes().cache_rows) * 256
    assert BASE - (1 << 37) < first <= BASE - (1 << 36)
    assert origin_of(1 << 20) == 0
    assert takes(shapes(), near)
    assert takes(shapes(64), near)
    assert takes(shapes(), [BASE, first, last])
    assert not takes(shapes(), [BASE, first - 256])
    assert not takes(shapes(), [BASE, last + 256])
    assert not takes(shapes(), [BASE, BASE + 128])
    assert takes(shapes(64), [BASE, BASE + 128])
    assert not takes(shapes(80), near)


def test_fastest_usable_kernel_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = [BASE, BASE + (1 << 30)]
    monkeypatch.setattr(prefill_attention, "has_wgmma", lambda head_size: head_size in (64, 128))
    assert {fastest(shapes(block_size=size), caches) for size in (*BLOCK_SIZES, ENDLESS)} == {"tma"}
    assert {fastest(shapes(block_size=size), caches) for size in (3, 24)} == {"mma"}
    assert fastest(shapes(window=64), caches) == "tma"
    assert fastest(shapes(scales=BASE), caches) == fastest(shapes(80), caches) == "mma"
    monkeypatch.setattr(prefill_attention, "has_wgmma", lambda head_size: False)
    assert fastest(shapes(), caches) == "mma"
