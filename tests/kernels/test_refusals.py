"""Every wrapper names the argument that it refuses, before anything touches a GPU."""

import re
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


def assert_refused(wrapper, call, key, value):
    """The wrapper raises a one-line ValueError or TypeError that names the key and the value."""
    with pytest.raises((ValueError, TypeError)) as caught:
        wrapper(**call)
    named, _, problem = str(caught.value).partition(": ")
    assert named == key
    assert re.search(rf"(?<!\w){re.escape(value)}(?!\w)", problem), problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"q": FakeArray(2, 8)}, "q", "[2, 8]"),
        ({"q": float32(2, 8, 64)}, "q", "float32"),
        ({"q": FakeArray(2, 8, 72)}, "q", "72"),
        ({"q": FakeArray(2, 7, 64)}, "out", "[2, 8, 64]"),
        ({"q": FakeArray(2, 7, 64), "out": FakeArray(2, 7, 64)}, "q", "7"),
        ({"q": misaligned(2, 8, 64)}, "q", "16"),
        ({"q": strided(2, 8, 64, strides=(513, 64, 1))}, "q", "16"),
        ({"q": strided(2, 8, 64, strides=(1024, 128, 1))}, "q", "128"),
        ({"out": float32(2, 8, 64)}, "out", "float32"),
        ({"out": FakeArray(3, 8, 64)}, "out", "[3, 8, 64]"),
        ({"out": misaligned(2, 8, 64)}, "out", "16"),
        ({"k_cache": FakeArray(5, 2, 16, 128)}, "k_cache", "[5, 2, 16, 128]"),
        (caches(5, 3, 16, 64), "q", "8"),
        ({"k_cache": float32(5, 2, 16, 64)}, "k_cache", "float32"),
        ({"k_cache": misaligned(5, 2, 16, 64)}, "k_cache", "16"),
        ({"v_cache": FakeArray(4, 2, 16, 64)}, "v_cache", "[4, 2, 16, 64]"),
        ({"v_cache": strided(5, 2, 16, 64, strides=(4096, 2048, 64, 2))}, "v_cache", "2"),
        ({"v_cache": misaligned(5, 2, 16, 64)}, "v_cache", "16"),
        ({"places": int64(2, 3)}, "places", "int64"),
        ({"places": int32(3, 3)}, "places", "[3, 3]"),
        ({"places": int32(2, 2)}, "places", "2"),
        ({"max_context_len": 49}, "places", "3"),
        ({"context_lens": int32(2, 1)}, "context_lens", "[2, 1]"),
        ({"context_lens": int64(2)}, "context_lens", "int64"),
        (caches(5, 2, 257, 64), "k_cache", "257"),
        (caches(5, 2, 0, 64), "k_cache", "0"),
        (caches(1 << 26, 2, 16, 64), "k_cache", "2147483648"),
        (caches(5, 2, 16, 64, make=e4m3), "k_cache", "uint8"),
        ({"kv_scales": float32(2, 2)}, "k_cache", "float16"),
        ({"window": 0}, "window", "0"),
        ({"window": 1 << 31}, "window", "2147483648"),
    ],
)
def test_decode_refuses(changes, key, value):
    assert_refused(bind_decode, decode_call(**changes), key, value)


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"places": int32(2, 3)}, "places", "[2, 3]"),
        ({"places": int64(2, 2)}, "places", "int64"),
    ],
)
def test_decode_of_extents_refuses(changes, key, value):
    assert_refused(bind_decode, extents_call(**changes), key, value)


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"kv_scales": float32(2, 8)}, "kv_scales", "[2, 8]"),
        ({"kv_scales": FakeArray(2, 2)}, "kv_scales", "float16"),
        (
            {
                "q": FakeArray(2, 8, 80),
                "out": FakeArray(2, 8, 80),
                **caches(5, 2, 16, 80, make=e4m3),
            },
            "kv_scales",
            "80",
        ),
    ],
)
def test_caches_of_one_byte_refuse(changes, key, value):
    assert_refused(bind_decode, e4m3_call(**changes), key, value)


@pytest.mark.parametrize(("capability", "text"), [(75, "7.5"), (80, "8.0"), (86, "8.6")])
def test_gpus_without_e4m3_are_refused(monkeypatch, capability, text):
    monkeypatch.setattr(attention, "compute_capability", lambda: capability)
    assert_refused(bind_decode, e4m3_call(), "kv_scales", text)


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"query_starts": int32(2)}, "query_starts", "[2]"),
        ({"max_query_len": 10}, "max_query_len", "10"),
        ({"max_query_len": 0}, "max_query_len", "0"),
        ({"kind": "tma"}, "kind=tma", "e4m3"),
    ],
)
def test_prefill_refuses(gpu, changes, key, value):
    assert_refused(bind_prefill, e4m3_prefill_call(**changes), key, value)
    assert gpu.launches == []


def test_tensor_copies_refuse_what_they_would_misread(gpu):
    between_rows = prefill_call(kind="tma")
    between_rows["k_cache"].data.ptr += 64
    other_blocks = prefill_call(kind="tma", **caches(4000, 8, 24, 128))
    for call in (between_rows, other_blocks):
        assert_refused(bind_prefill, call, "kind=tma", "64")
    assert gpu.launches == []


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"v_cache": FakeArray(5, 2, 16, 64)}, "v_cache", "[5, 2, 16, 64]"),
        ({"k_cache": FakeArray(5, 2, 16, 64)}, "k_cache", "[5, 2, 16, 64]"),
        ({"k_cache": FakeArray(5, 3, 8, 16, 8), "v_cache": FakeArray(5, 3, 64, 16)}, "q", "8"),
        (
            {"k_cache": FakeArray(5, 2, 8, 512, 8), "v_cache": FakeArray(5, 2, 64, 512)},
            "v_cache",
            "512",
        ),
        (
            {"k_cache": FakeArray(5, 2, 8, 24, 8), "v_cache": FakeArray(5, 2, 64, 24)},
            "v_cache",
            "24",
        ),
        ({"max_context_len": 50945}, "max_context_len", "50945"),
    ],
)
def test_paper_decode_refuses(changes, key, value):
    assert_refused(paper_decode, paper_decode_call(**changes), key, value)


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"k": FakeArray(7, 3, 64)}, "k", "[7, 3, 64]"),
        ({"v": FakeArray(6, 2, 64)}, "v", "[6, 2, 64]"),
        ({"k": misaligned(7, 2, 64)}, "k", "16"),
        ({"v": misaligned(7, 2, 64)}, "v", "16"),
        ({"k_cache": misaligned(9, 2, 16, 64)}, "k_cache", "16"),
        ({"v_cache": misaligned(9, 2, 16, 64)}, "v_cache", "16"),
        ({"k": strided(7, 2, 64, strides=(1024, 128, 1))}, "k", "128"),
        ({"v": strided(7, 2, 64, strides=(1024, 128, 1))}, "v", "128"),
        ({"k_cache": strided(9, 2, 16, 64, strides=(4096, 2048, 64, 2))}, "k_cache", "2"),
        ({"v_cache": strided(9, 2, 16, 64, strides=(4096, 2048, 64, 2))}, "v_cache", "2"),
        ({"slot_mapping": FakeArray(7, dtype="int64", element_strides=(2,))}, "slot_mapping", "2"),
        ({"slot_mapping": int32(7)}, "slot_mapping", "int32"),
        ({"slot_mapping": int64(7, 2)}, "slot_mapping", "[7, 2]"),
        (caches(9, 2, 16, 68), "v_cache", "68"),
        ({"paper_layout": True}, "k_cache", "[9, 2, 16, 64]"),
    ],
)
def test_write_refuses(changes, key, value):
    assert_refused(bind_write_cache, write_call(**changes), key, value)


def test_write_into_extents_refuses_one_slot_for_all_heads():
    call = write_extents_call(slot_mapping=int64(7))
    assert_refused(bind_write_cache, call, "slot_mapping", "[7]")


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"pairs": int32(3, 3)}, "pairs", "[3, 3]"),
        ({"pairs": int32(65536, 2)}, "pairs", "65536"),
        ({"pool": FakeArray(4, 9, 2, 16)}, "pool", "[4, 9, 2, 16]"),
        ({"pool": misaligned(4, 9, 2, 16, 64)}, "pool", "16"),
        ({"pool": FakeArray(4, 9, 1, 1, 4)}, "pool", "1"),
        ({"pool": FakeArray(0, 9, 2, 16, 64)}, "pool", "0"),
    ],
)
def test_block_copies_refuse(changes, key, value):
    assert_refused(bind_copy_blocks, copy_call(**changes), key, value)


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"staging": FakeArray(2, 4, 2, 16, 64)}, "staging", "2"),
        ({"staging": FakeArray(5, 3, 2, 16, 64)}, "staging", "[5, 3, 2, 16, 64]"),
        ({"ids": int64(3)}, "ids", "int64"),
        ({"ids": int32(65536)}, "ids", "65536"),
    ],
)
def test_staging_refuses(changes, key, value):
    assert_refused(bind_stage_blocks, stage_call(**changes), key, value)


def test_moves_refuse_a_host_pool_in_gpu_memory():
    pool, host_pool, staging = (FakeArray(n, 4, 2, 16, 64) for n in (4, 9, 3))
    with pytest.raises(ValueError, match=r"^host_pool: "):
        bind_move_blocks(pool, host_pool, int32(3, 2), to_host=True)
    with pytest.raises(ValueError, match=r"^host_pool: "):
        bind_unload_blocks(staging, host_pool, int32(3, 2))


def test_moves_refuse_host_memory_that_is_not_pinned():
    host_pool = torch.zeros((9, 4, 2, 16, 64), dtype=torch.float16)
    with pytest.raises(ValueError, match=r"^host_pool: "):
        bind_move_blocks(FakeArray(4, 9, 2, 16, 64), host_pool, int32(3, 2), to_host=True)


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"x": FakeArray(7, 500), "y": FakeArray(7, 500)}, "x", "500"),
        ({"y": FakeArray(6, 512)}, "y", "[6, 512]"),
        ({"shift": FakeArray(500)}, "shift", "[500]"),
        ({"x": misaligned(7, 512)}, "x", "16"),
        ({"y": misaligned(7, 512)}, "y", "16"),
        ({"gain": misaligned(512)}, "gain", "16"),
    ],
)
def test_norm_refuses(changes, key, value):
    assert_refused(bind_add_norm, norm_call(**changes), key, value)


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        (
            {"q": FakeArray(7, 8, 72), "k": FakeArray(7, 2, 72), "turns": float32(99, 2, 36)},
            "q",
            "72",
        ),
        ({"q": strided(7, 8, 64, strides=(1024, 128, 1))}, "q", "128"),
        ({"k": strided(7, 2, 64, strides=(1024, 128, 1))}, "k", "128"),
        ({"q": misaligned(7, 8, 64)}, "q", "16"),
        ({"k": misaligned(7, 2, 64)}, "k", "16"),
        ({"positions": int32(7)}, "positions", "int32"),
        ({"k": FakeArray(6, 2, 64)}, "k", "[6, 2, 64]"),
        ({"turns": float32(99, 3, 32)}, "turns", "[99, 3, 32]"),
    ],
)
def test_rotate_refuses(changes, key, value):
    assert_refused(bind_rotate, rotate_call(**changes), key, value)


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"y": FakeArray(7, 5000)}, "y", "[7, 5000]"),
        ({"x": misaligned(7, 10016)}, "x", "16"),
        ({"y": misaligned(7, 5008)}, "y", "16"),
        ({"x": FakeArray(7, 20), "y": FakeArray(7, 10)}, "x", "20"),
        ({"x": FakeArray(65536, 32), "y": FakeArray(65536, 16)}, "x", "65536"),
    ],
)
def test_silu_refuses(changes, key, value):
    assert_refused(bind_silu_mul, silu_call(**changes), key, value)


@pytest.mark.parametrize("value", [[1, 2], np.zeros((2, 8, 64), np.float16)])
def test_arrays_of_other_libraries_are_refused(value):
    assert_refused(bind_decode, decode_call(q=value), "q", type(value).__name__)


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        (
            {"plan": DecodePlan(4, 1, 16)},  # 40 tokens: 3 chunks of each of 2 x 8 heads
            "workspace",
            "47",
        ),
        (
            {"plan": DecodePlan(8, 1, 64, wave=True)},
            "plan",
            "2",  # 3 thread blocks for 2 groups of heads
        ),
        (
            {"plan": DecodePlan(4, 1, 16), "max_context_len": 2049, "places": int32(2, 129)},
            "plan",
            "129",
        ),
    ],
)
def test_plans_and_workspaces_must_fit(monkeypatch, changes, key, value):
    monkeypatch.setattr(attention, "multiprocessors", lambda: 3)
    workspace = Workspace(np.zeros((47, 64)), 0, 0)
    assert_refused(bind_decode, decode_call(workspace=workspace, **changes), key, value)


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
