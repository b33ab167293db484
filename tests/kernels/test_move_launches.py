"""Launches that move K and V, and copies between a pool on the GPU and one on the host."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from fake_gpu import STREAM, FakeArray, e4m3, float32, int32, launched
from kernel_calls import caches, copy_call, stage_call, write_call, write_extents_call

from testbed.kernels.launch.cache_ops import (
    ANY_MEMORY,
    INTO_GPU,
    TO_HOST,
    bind_copy_blocks,
    bind_stage_blocks,
    bind_write_cache,
    move_blocks,
    swap_per_block,
    unload_blocks,
)

BLOCK_VECTORS = 2 * 16 * 64 * 2 // 16  # of 16 bytes, in a plane of a block of the small pool


def test_write_into_blocks(gpu):
    launch, addresses = launched(gpu, bind_write_cache, write_call())
    assert (launch.source, launch.kernel) == ("cache_ops.cu", "write_cache")
    assert launch.defines == {
        "HEAD_SIZE": 64,
        "BF16": 0,
        "FP8": 0,
        "PAGED": 1,
        "BLOCK_SIZE": 16,
        "PAPER_LAYOUT": 0,
    }
    assert launch.grid == (7,)  # a thread block for each token
    assert launch.threads == 32  # 2 heads of 8 vectors, in whole warps
    for name, address in addresses.items():
        assert launch.arguments[name] == address, name
    assert launch.arguments["k_stride"] == launch.arguments["v_stride"] == 384 * 2
    assert launch.arguments["num_kv_heads"] == 2
    assert launch.arguments["kv_scales"] == 0


def test_keys_and_values_have_strides_of_their_own(gpu):
    launch, _ = launched(gpu, bind_write_cache, write_call(v=FakeArray(7, 2, 64)))
    assert launch.arguments["k_stride"] == 384 * 2
    assert launch.arguments["v_stride"] == 2 * 64


@pytest.mark.parametrize(
    ("num_kv_heads", "head_size", "threads"),
    [(2, 64, 32), (5, 64, 64), (20, 64, 160), (40, 128, 256)],  # up to 256: a vector each, or more
)
def test_threads_of_a_write_are_whole_warps(gpu, num_kv_heads, head_size, threads):
    new = {name: FakeArray(7, num_kv_heads, head_size) for name in ("k", "v")}
    call = write_call(**caches(9, num_kv_heads, 16, head_size), **new)
    assert launched(gpu, bind_write_cache, call)[0].threads == threads


def test_write_of_one_byte_values_is_scaled(gpu):
    scaled = write_call(**caches(5, 2, 16, 64, make=e4m3), kv_scales=float32(2, 2))
    launch, addresses = launched(gpu, bind_write_cache, scaled)
    assert launch.defines["FP8"] == 1
    assert launch.arguments["kv_scales"] == addresses["kv_scales"]


def test_write_in_the_layout_of_the_paper(gpu):
    in_layout = {"k_cache": FakeArray(5, 2, 8, 16, 8), "v_cache": FakeArray(5, 2, 64, 16)}
    launch, _ = launched(gpu, bind_write_cache, write_call(**in_layout, paper_layout=True))
    assert launch.defines["PAPER_LAYOUT"] == 1
    assert (launch.defines["HEAD_SIZE"], launch.defines["BLOCK_SIZE"]) == (64, 16)


def test_write_into_extents(gpu):
    launch, _ = launched(gpu, bind_write_cache, write_extents_call())
    assert (launch.defines["PAGED"], launch.defines["BLOCK_SIZE"]) == (0, 1)
    assert launch.arguments["num_kv_heads"] == 20


def test_copies_read_pairs_of_source_and_target(gpu):
    launch, addresses = launched(gpu, bind_copy_blocks, copy_call())
    assert (launch.source, launch.kernel) == ("cache_ops.cu", "copy_blocks")
    assert launch.grid == (1, 3, 4)  # parts of a block, copies, planes
    assert launch.threads == 256
    arguments = launch.arguments
    assert arguments["from"] == arguments["to"] == addresses["pool"]
    assert arguments["from_ids"] == addresses["pairs"]
    assert arguments["to_ids"] == addresses["pairs"] + 4  # the second column of int32
    assert arguments["step"] == 2
    assert arguments["from_block"] == arguments["to_block"] == BLOCK_VECTORS
    assert arguments["from_plane"] == arguments["to_plane"] == 9 * BLOCK_VECTORS
    assert arguments["vectors"] == BLOCK_VECTORS


@pytest.mark.parametrize(
    ("block", "parts"),
    [((2, 16, 64), 1), ((16, 16, 64), 2), ((40, 16, 128), 8)],  # 2, 16 and 80 KiB of 1,024 vectors
)
def test_large_blocks_are_copied_in_up_to_8_parts(gpu, block, parts):
    launch, _ = launched(gpu, bind_copy_blocks, copy_call(pool=FakeArray(4, 9, *block)))
    assert launch.grid == (parts, 3, 4)


def test_blocks_of_one_byte_values_have_half_as_many_vectors(gpu):
    launch, _ = launched(gpu, bind_copy_blocks, copy_call(pool=e4m3(4, 9, 2, 16, 64)))
    assert launch.arguments["vectors"] == BLOCK_VECTORS / 2


def test_gathering_puts_all_planes_of_a_block_together(gpu):
    launch, addresses = launched(gpu, bind_stage_blocks, stage_call())
    assert launch.grid == (1, 3, 4)
    arguments = launch.arguments
    assert (arguments["from"], arguments["from_ids"]) == (addresses["pool"], addresses["ids"])
    assert (arguments["from_block"], arguments["from_plane"]) == (BLOCK_VECTORS, 9 * BLOCK_VECTORS)
    assert (arguments["to"], arguments["to_ids"]) == (addresses["staging"], 0)  # in their order
    assert (arguments["to_block"], arguments["to_plane"]) == (4 * BLOCK_VECTORS, BLOCK_VECTORS)
    assert arguments["step"] == 1


def test_scattering_blocks_is_the_inverse_of_gathering_them(gpu):
    out = launched(gpu, bind_stage_blocks, stage_call())[0].arguments
    gpu.launches.clear()
    back = launched(gpu, bind_stage_blocks, stage_call(to_host=False))[0].arguments
    for end in ("", "_ids", "_block", "_plane"):
        assert back[f"to{end}"] == out[f"from{end}"]
        assert back[f"from{end}"] == out[f"to{end}"]


HOST, POOL, STAGING = 1 << 40, 1 << 20, 1 << 30  # addresses
NUM_PLANES, NUM_BLOCKS = 3, 7


@pytest.fixture(params=["float16", "uint8"])
def pools(request, monkeypatch):
    """A pool on the GPU, one on the host of 9 blocks, and the bytes of a block in a plane."""
    dtype = request.param
    monkeypatch.setattr(torch.Tensor, "data_ptr", lambda self: HOST)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: True)
    host = torch.zeros((9, NUM_PLANES, 2, 16, 64), dtype=getattr(torch, dtype))
    pool = FakeArray(NUM_PLANES, NUM_BLOCKS, 2, 16, 64, dtype=dtype, pointer=POOL)
    return pool, host, 2 * 16 * 64 * pool.dtype.itemsize


@pytest.mark.parametrize("to_host", [True, False])
def test_swap_per_block_copies_each_plane_of_each_block(gpu, pools, to_host):
    pool, host, size = pools
    pairs = [(2, 1), (6, 8)]  # blocks of the pool and of the host
    swap_per_block(pool, host, pairs, to_host)
    expected = []
    for device_block, host_block in pairs:
        for plane in range(NUM_PLANES):
            on_gpu = POOL + (plane * NUM_BLOCKS + device_block) * size
            on_host = HOST + (host_block * NUM_PLANES + plane) * size
            ends = (on_host, on_gpu) if to_host else (on_gpu, on_host)
            expected.append((*ends, size, ANY_MEMORY, STREAM))
    assert gpu.copies == expected
    assert gpu.launches == []


@pytest.mark.parametrize("to_host", [True, False])
def test_few_thread_blocks_move_blocks_between_the_pools(gpu, pools, to_host):
    pool, host, size = pools
    pairs = int32(3, 2, pointer=1 << 10)
    move_blocks(pool, host, pairs, to_host)
    (launch,) = gpu.launches
    assert (launch.source, launch.kernel) == ("cache_ops.cu", "move_blocks")
    assert (*launch.grid, launch.threads) == (TO_HOST if to_host else INTO_GPU)
    here, there = ("from", "to") if to_host else ("to", "from")
    vectors, arguments = size // 16, launch.arguments
    assert (arguments[here], arguments[there]) == (POOL, HOST)
    assert (arguments[f"{here}_ids"], arguments[f"{there}_ids"]) == (1 << 10, (1 << 10) + 4)
    assert (arguments[f"{here}_block"], arguments[f"{here}_plane"]) == (vectors, 7 * vectors)
    assert (arguments[f"{there}_block"], arguments[f"{there}_plane"]) == (3 * vectors, vectors)
    numbers = {name: arguments[name] for name in ("step", "num_blocks", "num_planes", "vectors")}
    assert numbers == {"step": 2, "num_blocks": 3, "num_planes": 3, "vectors": vectors}
    assert all(type(number) is np.int32 for number in numbers.values())
    assert gpu.copies == []


def test_staged_blocks_leave_in_their_order(gpu, pools):
    pool, host, size = pools
    staging = FakeArray(2, NUM_PLANES, 2, 16, 64, dtype=pool.dtype.name, pointer=STAGING)
    unload_blocks(staging, host, int32(2, 2, pointer=1 << 10))
    (launch,) = gpu.launches
    arguments, vectors = launch.arguments, size // 16
    assert (arguments["from"], arguments["from_ids"]) == (STAGING, 0)
    assert (arguments["to"], arguments["to_ids"]) == (HOST, (1 << 10) + 4)
    for end in ("from", "to"):
        strides = arguments[f"{end}_block"], arguments[f"{end}_plane"]
        assert strides == (3 * vectors, vectors)
