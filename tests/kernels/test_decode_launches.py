"""Launches of decode attention: grid and every argument by name, worked out by hand."""

import math

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from fake_gpu import NUM_SMS, FakeArray, int32, launched
from kernel_calls import (
    caches,
    decode_call,
    e4m3_call,
    extents_call,
    paper_decode_call,
    rows_of_product,
)

from testbed.kernels.launch.attention import ENDLESS, bind_decode, decode_workspace, paper_decode

LOG2_E = math.log2(math.e)


def long_call(num_seqs, max_context_len, num_blocks, **changes):
    """32 heads of 128 over 8 KV heads: a group of 4 heads reads each KV head."""
    call = decode_call(num_seqs, 32, 128, **caches(4000, 8, 16, 128))
    call |= {"places": int32(num_seqs, num_blocks), "max_context_len": max_context_len}
    return call | changes


def test_decode_of_blocks_binds_tables_and_strides(gpu):
    launch, addresses = launched(gpu, bind_decode, decode_call())
    assert (launch.source, launch.kernel) == ("decode.cu", "decode")
    assert launch.defines == {
        "HEAD_SIZE": 64,
        "GROUP": 4,  # 8 heads read 2 KV heads
        "BF16": 0,
        "PAGED": 1,
        "BLOCK_SIZE": 16,
        "FP8": 0,
        "WINDOWED": 0,
        "NUM_WARPS": 8,
        "CTAS_PER_SM": 2,
        "WAVE": 0,
        "SHARES": 0,
        "PREFIXED": 0,
    }
    assert launch.grid == (2, 2, 1)  # groups of heads, sequences, chunks of a context
    assert (launch.threads, launch.shared_bytes) == (8 * 32, 0)
    arguments = launch.arguments
    for name, address in addresses.items():
        assert arguments[name] == address, name
    partial = [arguments[name] for name in ("part_o", "part_state", "counters")]
    assert len({*partial, *addresses.values()}) == 9, "a workspace of its own"
    assert arguments["scale_log2"] == pytest.approx(64**-0.5 * LOG2_E)
    assert arguments["q_stride"] == 384 * 8
    assert (arguments["num_kv_heads"], arguments["places_width"]) == (2, 3)
    assert (arguments["num_seqs"], arguments["max_chunks"]) == (2, 1)
    assert arguments["chunk_tokens"] == 8 * 16  # a tile for each warp
    assert arguments["resident"] == NUM_SMS * 2 // 2  # two thread blocks a multiprocessor
    assert (arguments["kv_scales"], arguments["window"]) == (0, 0)


def test_decode_of_extents_reads_one_endless_block(gpu):
    launch, _ = launched(gpu, bind_decode, extents_call(scale=0.5))
    assert (launch.defines["PAGED"], launch.defines["BLOCK_SIZE"]) == (0, ENDLESS)
    assert launch.arguments["places_width"] == 2  # first slot and capacity
    assert launch.arguments["scale_log2"] == pytest.approx(0.5 * LOG2_E)


def test_decode_of_one_byte_values_with_a_window(gpu):
    launch, addresses = launched(gpu, bind_decode, e4m3_call(max_context_len=48, window=7))
    assert (launch.defines["FP8"], launch.defines["WINDOWED"]) == (1, 1)
    assert launch.arguments["kv_scales"] == addresses["kv_scales"]
    assert launch.arguments["window"] == 7
    assert launch.arguments["chunk_tokens"] == 8 * 16 + 16  # a window may begin inside a tile


def test_bfloat16_queries_are_compiled_for(gpu):
    bf16 = {name: FakeArray(2, 8, 64, dtype="bfloat16") for name in ("q", "out")}
    kv = {name: FakeArray(5, 2, 16, 64, dtype="bfloat16") for name in ("k_cache", "v_cache")}
    launch, _ = launched(gpu, bind_decode, decode_call(**bf16, **kv))
    assert launch.defines["BF16"] == 1


def test_one_long_context_is_split_into_chunks(gpu):
    """8 groups of heads fill a sixteenth of 132 thread blocks, so a context has 16 chunks."""
    launch, _ = launched(gpu, bind_decode, long_call(1, 16_384, 1024))
    assert launch.grid == (8, 1, 16)
    assert launch.arguments["chunk_tokens"] == 16_384 / 16
    assert launch.arguments["max_chunks"] == 16
    assert launch.arguments["resident"] == 132 // 8


def test_a_window_of_a_long_context_is_split_instead(gpu):
    """256 tokens a chunk and the tile in which a window may begin: 1,015 tokens in 4 chunks."""
    launch, _ = launched(gpu, bind_decode, long_call(3, 16_384, 1024, window=1000))
    assert launch.grid == (8, 3, 4)
    assert launch.arguments["chunk_tokens"] == 256 + 16


def test_a_wave_launches_all_thread_blocks_that_run_at_once(gpu):
    """8 sequences of 8 groups nearly half fill the GPU, so that two chunks each make one wave."""
    launch, _ = launched(gpu, bind_decode, long_call(8, 8192, 512))
    assert launch.defines["WAVE"] == 1
    assert launch.grid == (NUM_SMS,)
    assert launch.arguments["chunk_tokens"] == 8192 / 16  # at least
    assert launch.arguments["resident"] == NUM_SMS // 8


def test_a_thread_block_has_at_most_8_heads_of_a_kv_head(gpu):
    call = decode_call(2, 32, 128, **caches(99, 2, 8, 128), places=int32(2, 9))
    launch, _ = launched(gpu, bind_decode, call | {"max_context_len": 70})
    assert launch.defines["GROUP"] == 16
    assert launch.grid == (2 * 2, 2, 1)


@pytest.mark.parametrize(
    ("num_seqs", "num_heads", "num_chunks", "rows"), [(3, 32, 4, 3 * 32 * 4), (3, 32, 1, 1)]
)
def test_workspace_has_a_row_for_each_head_and_chunk(num_seqs, num_heads, num_chunks, rows):
    workspace = decode_workspace(torch.zeros(num_seqs, num_heads, 128), num_chunks)
    assert workspace.part_o.shape == (rows, 128)
    assert workspace.part_state.shape == (rows, 2)
    assert workspace.part_o.dtype == workspace.part_state.dtype == torch.float32
    assert workspace.counters.shape == (num_seqs * num_heads,)
    assert workspace.counters.dtype == torch.int32
    assert not workspace.counters.any()


def test_a_workspace_that_is_given_is_used(gpu):
    workspace = decode_workspace(FakeArray(2, 8, 64), 3)
    launch, _ = launched(gpu, bind_decode, decode_call(workspace=workspace))
    assert workspace.part_o.shape == (48, 64)
    assert launch.arguments["part_o"] == workspace.part_o.data.ptr
    assert launch.arguments["part_state"] == workspace.part_state.data.ptr
    assert launch.arguments["counters"] == workspace.counters.data.ptr


def test_paper_decode_keeps_the_scores_of_whole_blocks_in_shared_memory(gpu):
    launch, addresses = launched(gpu, paper_decode, paper_decode_call())
    assert (launch.source, launch.kernel) == ("paper_decode.cu", "paper_decode")
    assert launch.defines == {"HEAD_SIZE": 64, "GROUP": 4, "BLOCK_SIZE": 16, "BF16": 0}
    assert launch.grid == (8, 2)  # heads, sequences
    assert launch.threads == 128
    assert launch.shared_bytes == 3 * 16 * 4  # 40 tokens fill 3 blocks of 16 floats
    arguments = launch.arguments
    assert arguments["block_tables"] == addresses["places"]
    for name in ("out", "q", "k_cache", "v_cache", "context_lens"):
        assert arguments[name] == addresses[name], name
    assert arguments["scale_log2"] == pytest.approx(64**-0.5 * LOG2_E)
    assert arguments["q_stride"] == 384 * 8
    assert (arguments["num_kv_heads"], arguments["max_blocks"]) == (2, 3)


def test_queries_of_a_product_are_read_in_place(gpu):
    launch, _ = launched(gpu, bind_decode, decode_call(q=rows_of_product(2, 8, 64)))
    dense, _ = decode_call(q=FakeArray(2, 8, 64)), gpu.launches.clear()
    assert launch.arguments["q_stride"] == 3072
    assert launched(gpu, bind_decode, dense)[0].arguments["q_stride"] == 8 * 64
