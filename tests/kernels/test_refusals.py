"""Every wrapper names the argument that it refuses, before anything touches a GPU."""

import sys

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from fake_gpu import FakeArray, e4m3, float32, int32, int64
from kernel_calls import (
    caches,
    copy_call,
    decode_call,
    e4m3_call,
    e4m3_prefill_call,
    extents_call,
    norm_call,
    paper_decode_call,
    prefill_call,
    rotate_call,
    silu_call,
    stage_call,
    write_call,
    write_extents_call,
)
from refusals import refuses

from testbed.kernels.engine.maths import bind_add_norm, bind_rotate, bind_silu_mul
from testbed.kernels.launch import attention, compile
from testbed.kernels.launch.attention import Workspace, bind_decode, decode, paper_decode
from testbed.kernels.launch.cache_ops import (
    bind_copy_blocks,
    bind_move_blocks,
    bind_stage_blocks,
    bind_unload_blocks,
    bind_write_cache,
)
from testbed.kernels.launch.compile import KernelsUnavailable
from testbed.kernels.launch.decode_plan import DecodePlan
from testbed.kernels.launch.prefill_attention import bind_prefill

MISALIGNED = 8  # bytes; rows are read 16 bytes at once


def misaligned(*shape):
    """An array whose first row starts between two multiples of 16 bytes."""
    return FakeArray(*shape, pointer=MISALIGNED)


def strided(*shape, strides):
    """An array with these elements between neighbours of each dimension."""
    return FakeArray(*shape, element_strides=strides)


def assert_refused(wrapper, call, message):
    """The wrapper raises a one-line ValueError or TypeError that begins with the message."""
    with pytest.raises((ValueError, TypeError)) as caught:
        wrapper(**call)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": FakeArray(2, 8)}, "q: expected shape [any, any, any], got [2, 8]"),
        ({"q": float32(2, 8, 64)}, "q: expected float16 or bfloat16, got float32"),
        ({"q": FakeArray(2, 8, 72)}, "q: head size 72 is not one of (64, 80, 96, 128, 256)"),
        ({"q": FakeArray(2, 7, 64)}, "out: expected shape [2, 7, 64], got [2, 8, 64]"),
        (
            {"q": FakeArray(2, 7, 64), "out": FakeArray(2, 7, 64)},
            "q: 7 heads are no multiple of k_cache's 2 kv heads",
        ),
        ({"q": misaligned(2, 8, 64)}, "q: rows must start at multiples of 16 bytes"),
        (
            {"q": strided(2, 8, 64, strides=(513, 64, 1))},
            "q: rows must start at multiples of 16 bytes",
        ),
        (
            {"q": strided(2, 8, 64, strides=(1024, 128, 1))},
            "q: dimension 1 has stride 128, expected 64 (contiguous)",
        ),
        ({"out": float32(2, 8, 64)}, "out: expected float16, got float32"),
        ({"out": FakeArray(3, 8, 64)}, "out: expected shape [2, 8, 64], got [3, 8, 64]"),
        ({"out": misaligned(2, 8, 64)}, "out: rows must start at multiples of 16 bytes"),
        (
            {"k_cache": FakeArray(5, 2, 16, 128)},
            "k_cache: expected shape [any, any, any, 64], got [5, 2, 16, 128]",
        ),
        (caches(5, 3, 16, 64), "q: 8 heads are no multiple of k_cache's 3 kv heads"),
        ({"k_cache": float32(5, 2, 16, 64)}, "k_cache: expected float16, got float32"),
        (
            {"k_cache": misaligned(5, 2, 16, 64)},
            "k_cache: rows must start at multiples of 16 bytes",
        ),
        (
            {"v_cache": FakeArray(4, 2, 16, 64)},
            "v_cache: expected shape [5, 2, 16, 64], got [4, 2, 16, 64]",
        ),
        (
            {"v_cache": strided(5, 2, 16, 64, strides=(4096, 2048, 64, 2))},
            "v_cache: dimension 3 has stride 2, expected 1 (contiguous)",
        ),
        (
            {"v_cache": misaligned(5, 2, 16, 64)},
            "v_cache: rows must start at multiples of 16 bytes",
        ),
        ({"places": int64(2, 3)}, "places: expected int32, got int64"),
        ({"places": int32(3, 3)}, "places: expected shape [2, any], got [3, 3]"),
        ({"places": int32(2, 2)}, "places: 2 blocks of 16 slots, too few for 40 tokens"),
        ({"max_context_len": 49}, "places: 3 blocks of 16 slots, too few for 49 tokens"),
        ({"context_lens": int32(2, 1)}, "context_lens: expected shape [2], got [2, 1]"),
        ({"context_lens": int64(2)}, "context_lens: expected int32, got int64"),
        (caches(5, 2, 257, 64), "k_cache: block size: expected 1 to 256, got 257"),
        (caches(5, 2, 0, 64), "k_cache: block size: expected 1 to 256, got 0"),
        (
            caches(1 << 26, 2, 16, 64),
            "k_cache: 2147483648 rows of a head, at most 2147483647",
        ),
        (caches(5, 2, 16, 64, make=e4m3), "k_cache: expected float16, got uint8"),
        (
            {"kv_scales": float32(2, 2)},
            "k_cache: expected float8_e4m3fn or uint8, got float16",
        ),
        ({"window": 0}, "window: expected 1 to 2147483647, got 0"),
        ({"window": 1 << 31}, "window: expected 1 to 2147483647, got 2147483648"),
    ],
)
def test_decode_refuses(changes, message):
    assert_refused(bind_decode, decode_call(**changes), message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"places": int32(2, 3)}, "places: expected shape [2, 2], got [2, 3]"),
        ({"places": int64(2, 2)}, "places: expected int32, got int64"),
    ],
)
def test_decode_of_extents_refuses(changes, message):
    assert_refused(bind_decode, extents_call(**changes), message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_scales": float32(2, 8)}, "kv_scales: expected shape [2, 2], got [2, 8]"),
        ({"kv_scales": FakeArray(2, 2)}, "kv_scales: expected float32, got float16"),
        (
            {
                "q": FakeArray(2, 8, 80),
                "out": FakeArray(2, 8, 80),
                **caches(5, 2, 16, 80, make=e4m3),
            },
            "kv_scales: no kernel of e4m3 for head size 80, only for (64, 128, 256)",
        ),
    ],
)
def test_caches_of_one_byte_refuse(changes, message):
    assert_refused(bind_decode, e4m3_call(**changes), message)


@pytest.mark.parametrize(("capability", "text"), [(75, "7.5"), (80, "8.0"), (86, "8.6")])
def test_gpus_without_e4m3_are_refused(monkeypatch, capability, text):
    monkeypatch.setattr(attention, "compute_capability", lambda: capability)
    message = "kv_scales: e4m3 needs a GPU of compute capability 8.9 or more, this one has "
    assert_refused(bind_decode, e4m3_call(), message + text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_starts": int32(2)}, "query_starts: expected shape [3], got [2]"),
        ({"max_query_len": 10}, "max_query_len: expected 1 to 9, got 10"),
        ({"max_query_len": 0}, "max_query_len: expected 1 to 9, got 0"),
        ({"kind": "tma"}, "kind=tma: reads no e4m3 (leave kind out)"),
    ],
)
def test_prefill_refuses(gpu, changes, message):
    assert_refused(bind_prefill, e4m3_prefill_call(**changes), message)
    assert gpu.launches == []


def test_tensor_copies_refuse_what_they_would_misread(gpu):
    between_rows = prefill_call(kind="tma")
    between_rows["k_cache"].data.ptr += 64
    other_blocks = prefill_call(kind="tma", **caches(4000, 8, 24, 128))
    for call in (between_rows, other_blocks):
        assert_refused(bind_prefill, call, "kind=tma: reads head sizes 64 and 128, blocks of (1, 2")
    assert gpu.launches == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"v_cache": FakeArray(5, 2, 16, 64)},
            "v_cache: expected shape [any, any, 64, any], got [5, 2, 16, 64]",
        ),
        (
            {"k_cache": FakeArray(5, 2, 16, 64)},
            "k_cache: expected shape [5, 2, 8, 16, 8], got [5, 2, 16, 64]",
        ),
        (
            {"k_cache": FakeArray(5, 3, 8, 16, 8), "v_cache": FakeArray(5, 3, 64, 16)},
            "q: 8 heads are no multiple of v_cache's 3 kv heads",
        ),
        (
            {"k_cache": FakeArray(5, 2, 8, 512, 8), "v_cache": FakeArray(5, 2, 64, 512)},
            "v_cache: block size: expected 1 to 256, got 512",
        ),
        (
            {"k_cache": FakeArray(5, 2, 8, 24, 8), "v_cache": FakeArray(5, 2, 64, 24)},
            "v_cache: this design needs a power of two as block size, got 24",
        ),
        ({"max_context_len": 50945}, "max_context_len: expected 0 to 50944, got 50945"),
    ],
)
def test_paper_decode_refuses(changes, message):
    assert_refused(paper_decode, paper_decode_call(**changes), message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": FakeArray(7, 3, 64)}, "k: expected shape [any, 2, 64], got [7, 3, 64]"),
        ({"v": FakeArray(6, 2, 64)}, "v: expected shape [7, 2, 64], got [6, 2, 64]"),
        ({"k": misaligned(7, 2, 64)}, "k: rows must start at multiples of 16 bytes"),
        ({"v": misaligned(7, 2, 64)}, "v: rows must start at multiples of 16 bytes"),
        (
            {"k_cache": misaligned(9, 2, 16, 64)},
            "k_cache: rows must start at multiples of 16 bytes",
        ),
        (
            {"v_cache": misaligned(9, 2, 16, 64)},
            "v_cache: rows must start at multiples of 16 bytes",
        ),
        (
            {"k": strided(7, 2, 64, strides=(1024, 128, 1))},
            "k: dimension 1 has stride 128, expected 64 (contiguous)",
        ),
        (
            {"v": strided(7, 2, 64, strides=(1024, 128, 1))},
            "v: dimension 1 has stride 128, expected 64 (contiguous)",
        ),
        (
            {"k_cache": strided(9, 2, 16, 64, strides=(4096, 2048, 64, 2))},
            "k_cache: dimension 3 has stride 2, expected 1 (contiguous)",
        ),
        (
            {"v_cache": strided(9, 2, 16, 64, strides=(4096, 2048, 64, 2))},
            "v_cache: dimension 3 has stride 2, expected 1 (contiguous)",
        ),
        (
            {"slot_mapping": FakeArray(7, dtype="int64", element_strides=(2,))},
            "slot_mapping: dimension 0 has stride 2, expected 1 (contiguous)",
        ),
        ({"slot_mapping": int32(7)}, "slot_mapping: expected int64, got int32"),
        ({"slot_mapping": int64(7, 2)}, "slot_mapping: expected shape [7], got [7, 2]"),
        (caches(9, 2, 16, 68), "v_cache: head size 68 is no multiple of 8"),
        (
            {"paper_layout": True},
            "k_cache: expected shape [9, 2, 2, 64, 8], got [9, 2, 16, 64]",
        ),
    ],
)
def test_write_refuses(changes, message):
    assert_refused(bind_write_cache, write_call(**changes), message)


def test_write_into_extents_refuses_one_slot_for_all_heads():
    message = "slot_mapping: expected shape [7, 20], got [7]"
    assert_refused(bind_write_cache, write_extents_call(slot_mapping=int64(7)), message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pairs": int32(3, 3)}, "pairs: expected shape [any, 2], got [3, 3]"),
        ({"pairs": int32(65536, 2)}, "pairs: number of copies: expected 0 to 65535, got 65536"),
        (
            {"pool": FakeArray(4, 9, 2, 16)},
            "pool: expected shape [any, any, any, any, any], got [4, 9, 2, 16]",
        ),
        ({"pool": misaligned(4, 9, 2, 16, 64)}, "pool: rows must start at multiples of 16 bytes"),
        (
            {"pool": FakeArray(4, 9, 1, 1, 4)},
            "pool: a block of (1, 1, 4) is no multiple of 16 bytes",
        ),
        (
            {"pool": FakeArray(0, 9, 2, 16, 64)},
            "pool: number of planes: expected 1 to 65535, got 0",
        ),
    ],
)
def test_block_copies_refuse(changes, message):
    assert_refused(bind_copy_blocks, copy_call(**changes), message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"staging": FakeArray(2, 4, 2, 16, 64)}, "staging: has 2 blocks, ids has 3"),
        (
            {"staging": FakeArray(5, 3, 2, 16, 64)},
            "staging: expected shape [any, 4, 2, 16, 64], got [5, 3, 2, 16, 64]",
        ),
        ({"ids": int64(3)}, "ids: expected int32, got int64"),
        ({"ids": int32(65536)}, "ids: number of blocks: expected 0 to 65535, got 65536"),
    ],
)
def test_staging_refuses(changes, message):
    assert_refused(bind_stage_blocks, stage_call(**changes), message)


def test_moves_refuse_a_host_pool_in_gpu_memory():
    pool, host_pool, staging = (FakeArray(n, 4, 2, 16, 64) for n in (4, 9, 3))
    message = "host_pool: expected pinned host memory"
    with pytest.raises(ValueError, match=message):
        bind_move_blocks(pool, host_pool, int32(3, 2), to_host=True)
    with pytest.raises(ValueError, match=message):
        bind_unload_blocks(staging, host_pool, int32(3, 2))


def test_moves_refuse_host_memory_that_is_not_pinned():
    host_pool = torch.zeros((9, 4, 2, 16, 64), dtype=torch.float16)
    with pytest.raises(ValueError, match="host_pool: expected pinned host memory"):
        bind_move_blocks(FakeArray(4, 9, 2, 16, 64), host_pool, int32(3, 2), to_host=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"x": FakeArray(7, 500), "y": FakeArray(7, 500)},
            "x: 500 values a token are no multiple of 8",
        ),
        ({"y": FakeArray(6, 512)}, "y: expected shape [7, 512], got [6, 512]"),
        ({"shift": FakeArray(500)}, "shift: expected shape [512], got [500]"),
        ({"x": misaligned(7, 512)}, "x: rows must start at multiples of 16 bytes"),
        ({"y": misaligned(7, 512)}, "y: rows must start at multiples of 16 bytes"),
        ({"gain": misaligned(512)}, "gain: rows must start at multiples of 16 bytes"),
    ],
)
def test_norm_refuses(changes, message):
    assert_refused(bind_add_norm, norm_call(**changes), message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"q": FakeArray(7, 8, 72), "k": FakeArray(7, 2, 72), "turns": float32(99, 2, 36)},
            "q: head size 72 is no multiple of 16",
        ),
        (
            {"q": strided(7, 8, 64, strides=(1024, 128, 1))},
            "q: dimension 1 has stride 128, expected 64 (contiguous)",
        ),
        (
            {"k": strided(7, 2, 64, strides=(1024, 128, 1))},
            "k: dimension 1 has stride 128, expected 64 (contiguous)",
        ),
        ({"q": misaligned(7, 8, 64)}, "q: rows must start at multiples of 16 bytes"),
        ({"k": misaligned(7, 2, 64)}, "k: rows must start at multiples of 16 bytes"),
        ({"positions": int32(7)}, "positions: expected int64, got int32"),
        ({"k": FakeArray(6, 2, 64)}, "k: expected shape [7, any, 64], got [6, 2, 64]"),
        ({"turns": float32(99, 3, 32)}, "turns: expected shape [any, 2, 32], got [99, 3, 32]"),
    ],
)
def test_rotate_refuses(changes, message):
    assert_refused(bind_rotate, rotate_call(**changes), message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": FakeArray(7, 5000)}, "y: expected shape [7, 5008], got [7, 5000]"),
        ({"x": misaligned(7, 10016)}, "x: rows must start at multiples of 16 bytes"),
        ({"y": misaligned(7, 5008)}, "y: rows must start at multiples of 16 bytes"),
        (
            {"x": FakeArray(7, 20), "y": FakeArray(7, 10)},
            "x: 20 values a token are no multiple of 16",
        ),
        (
            {"x": FakeArray(65536, 32), "y": FakeArray(65536, 16)},
            "x: number of tokens: expected 0 to 65535, got 65536",
        ),
    ],
)
def test_silu_refuses(changes, message):
    assert_refused(bind_silu_mul, silu_call(**changes), message)


@pytest.mark.parametrize("value", [[1, 2], np.zeros((2, 8, 64), np.float16)])
def test_arrays_of_other_libraries_are_refused(value):
    message = f"q: expected a torch or CuPy array, got {type(value).__name__}"
    assert_refused(bind_decode, decode_call(q=value), message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"plan": DecodePlan(4, 1, 16)},  # 40 tokens: 3 chunks of each of 2 x 8 heads
            "workspace: has 47 partial rows, the launch needs 48",
        ),
        (
            {"plan": DecodePlan(8, 1, 64, wave=True)},
            "plan: 2 sequences, a wave has at most 1",  # 3 thread blocks for 2 groups of heads
        ),
        (
            {"plan": DecodePlan(4, 1, 16), "max_context_len": 2049, "places": int32(2, 129)},
            "plan: 129 chunks of 16 tokens, at most 128",
        ),
    ],
)
def test_plans_and_workspaces_must_fit(monkeypatch, changes, message):
    monkeypatch.setattr(attention, "multiprocessors", lambda: 3)
    workspace = Workspace(np.zeros((47, 64)), 0, 0)
    assert_refused(bind_decode, decode_call(workspace=workspace, **changes), message)


def test_missing_cupy_is_reported_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    refuses("CuPy is missing", decode, **decode_call(), error=KernelsUnavailable)


def test_missing_gpu_is_reported_in_one_line():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        refuses("no NVIDIA driver or GPU is usable", compile.require_gpu, error=KernelsUnavailable)
    else:
        pytest.skip("this machine has a GPU")
