"""Bytes of a token, of the weights and of the pool: of models that are known, and of one small enough to add up."""

from dataclasses import replace

import pytest
from refusals import refuses

from testbed.core.specs import GIB, GpuSpec, ModelSpec, ServerSpec

# 3 layers; 2 * 10 * 4 * 5 for queries and outputs, 2 * 10 * 2 * 5 for K and V, 3 * 10 * 20 for the MLP; 7 words of 10
TINY = ModelSpec("tiny", 3, 10, num_heads=4, num_kv_heads=2, head_size=5, ffn_size=20, ffn_matrices=3, vocab_size=7,
                 max_len=64)  # fmt: skip
WEIGHTS = 3 * (400 + 200 + 600) + 70


def server(num_gpus, memory_bytes=10 * GIB, **options):
    return ServerSpec("server", GpuSpec("gpu", memory_bytes, 1e9, 1e12, 1e9, 1e9), num_gpus, **options)


def test_kv_bytes_per_token_count_kv_heads():
    assert TINY.kv_bytes_per_token == 2 * 3 * 2 * 5 * 2
    opt = ModelSpec("opt-13b", 40, 5120, 40, 40, 128, 20480, 2, 50272, 2048, tied_embedding=True)
    assert opt.kv_bytes_per_token == 800 * 1024  # section 3
    assert opt.weight_bytes == pytest.approx(26e9, rel=0.03)  # Table 1 says 26 GB


def test_weight_count_includes_tied_embedding_once():
    tied = replace(TINY, tied_embedding=True)
    assert (TINY.linear_params, TINY.num_params, tied.num_params) == (WEIGHTS, WEIGHTS + 70, WEIGHTS)
    assert TINY.weight_bytes == 2 * (WEIGHTS + 70)


@pytest.mark.parametrize("num_gpus", [1, 2, 4])
def test_pool_is_memory_left_by_weights_and_workspace(num_gpus):
    usable = num_gpus * (5 - 1.5) * GIB
    given = server(num_gpus, memory_utilization=0.5, workspace_gib=1.5)
    assert given.kv_pool_bytes(TINY) == usable - TINY.weight_bytes
    assert server(num_gpus, kv_memory_gib={"tiny": 2.5}).kv_pool_bytes(TINY) == 2.5 * GIB


def test_pool_has_at_least_one_whole_block():
    small = server(1, kv_memory_gib={"tiny": 101 * 120 / GIB})
    assert (small.kv_slots(TINY), small.kv_slots(TINY, 16), small.kv_slots(TINY, 100)) == (101, 96, 100)
    refuses("leaves no memory", small.kv_slots, TINY, 102)
