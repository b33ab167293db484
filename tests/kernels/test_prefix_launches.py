"""Launches that read a prefix of decodes once: the prefix, and the rest of each."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from fake_gpu import NUM_SMS, FakeArray, int32, launched
from kernel_calls import caches, decode_call, prefix_call
from refusals import refuses

from testbed.kernels.launch.attention import bind_decode, decode_workspace
from testbed.kernels.launch.decode_plan import DecodePlan, prefix_chunks
from testbed.kernels.launch.prefill_attention import bind_prefix

OWN_ROWS = 100_000  # of partial results


def call_with_workspace(**changes):
    call = prefix_call(**changes)
    return call | {"workspace": decode_workspace(call["q"], OWN_ROWS // call["q"].shape[0])}


def test_tokens_of_a_prefix_are_the_context_of_every_row(gpu):
    launch, addresses = launched(gpu, bind_prefix, call_with_workspace())
    assert (launch.source, launch.defines["PREFIX"], launch.defines["PACK"]) == (
        "prefill_tma.cu",
        1,
        1,
    )
    arguments = launch.arguments
    assert arguments["query_starts"] == addresses["runs"]
    assert arguments["context_lens"] == addresses["prefixes"]
    assert arguments["out"] == 0  # partial results go to the workspace
    assert arguments["part_o"] != 0
    assert arguments["num_seqs"] == 2  # runs
    # 128 sequences of 4 heads in tiles of 128 rows, in 4 chunks: 8 KV heads x 4 x 4 fill 132
    assert arguments["prefix_chunks"] == 4
    assert arguments["num_tiles"] == 4 * 4
    assert launch.grid == (NUM_SMS,)


def test_decodes_merge_as_many_chunks_as_the_prefix_has(gpu):
    call = decode_call(128, 32, 128, **caches(4000, 8, 16, 128), prefixes=int32(128))
    call["places"] = int32(128, 3)
    launch, addresses = launched(gpu, bind_decode, call)
    assert launch.defines["PREFIXED"] == 1
    assert launch.arguments["prefixes"] == addresses["prefixes"]
    assert launch.arguments["prefix_chunks"] == 4


@pytest.mark.parametrize(
    ("num_seqs", "num_heads", "num_kv_heads", "chunks"),
    [
        (128, 40, 40, 3),  # 40 tiles of queries
        (129, 40, 40, 1),  # 80
        (32, 32, 8, 8),  # 8 tiles; more chunks take longer to merge
        (32, 14, 2, 8),  # 7 heads are not packed: 14 tiles
        (256, 64, 8, 1),  # 8 x 16 tiles
    ],
)
def test_chunks_of_a_prefix_fill_the_gpu(num_seqs, num_heads, num_kv_heads, chunks):
    assert prefix_chunks(num_seqs, num_heads, num_kv_heads, NUM_SMS) == chunks


def test_thread_blocks_with_equal_shares_write_at_most_two_partial_results(gpu):
    plan = DecodePlan(4, 3, 256, shares=True)
    call = decode_call(128, 32, 128, **caches(4000, 8, 16, 128), plan=plan)
    launch, _ = launched(gpu, bind_decode, call | {"places": int32(128, 3)})
    assert launch.grid == (3 * NUM_SMS,)
    assert launch.defines["SHARES"] == 1
    small = decode_workspace(FakeArray(128, 32, 128), 1)
    message = f"the launch needs {2 * 3 * NUM_SMS * 4}"
    call |= {"places": int32(128, 3), "workspace": small}
    refuses(message, bind_decode, error=ValueError, **call)


@pytest.mark.parametrize(
    "changes",
    [
        caches(64_000, 8, 128),  # an extent has no block that others share
        {"head_size": 80},
        caches(4000, 8, 24, 128),
    ],
)
def test_caches_that_the_kernel_cannot_read_are_refused(gpu, changes):
    call = call_with_workspace(**changes)
    if len(call["k_cache"].shape) == 3:
        call["places"] = int32(128, 2)
    refuses("prefixes: kind=tma", bind_prefix, error=ValueError, **call)
