"""The paper's worked examples, block for block, and those of public explanations of paged
attention.
"""

import pytest
from manual_driver import ManualDriver, admit_and_prefill, extend, fork, sequence

from testbed.core.request import Request
from testbed.core.shapes import read_model
from testbed.core.slots import Copy
from testbed.core.specs import GpuSpec, ServerSpec
from testbed.memory.contiguous.reservations import ContiguousMax
from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.beam_search import pairs
from testbed.sched.preemption import Recompute
from testbed.sched.static_batch import StaticBatch


def paged(num_blocks, order=None, block_size=4):
    blocks = BlockPool(num_blocks)
    blocks.free = list(order or range(num_blocks))[::-1]
    return Paged(PoolSpec(num_blocks * block_size, 2048), block_size, watermark=0, blocks=blocks)


def blocks(policy, seq):
    return [extent.start // policy.block_size for extent in policy.table(seq)]


def filled(policy, seq, num_tokens):
    size = policy.block_size
    return [min(size, num_tokens - i * size) for i in range(len(policy.table(seq)))]


def split(policy, seq, final_len):
    """(live, reserved, internal) of a pool that holds this one sequence."""
    used = policy.usage()
    internal = max(0, policy.table(seq)[0].length - final_len)
    return used.live, used.held - used.live - internal, internal


def test_figure_3_reserves_2048_and_512_slots():
    for max_len, prompt_len, final_len, expected in (
        (2048, 7, 10, (8, 2, 2038)),
        (512, 3, 5, (4, 1, 507)),
    ):
        policy, seq = ContiguousMax(PoolSpec(4096, max_len)), sequence(0, prompt_len)
        admit_and_prefill(policy, [seq], prompt_len)
        extend(policy, [seq], 1)
        assert split(policy, seq, final_len) == expected


def test_figure_6_maps_logical_blocks_when_they_fill():
    policy, seq = paged(9, order=[7, 1, 3, 0, 2, 4, 5, 6, 8]), sequence(0, 7)
    admit_and_prefill(policy, [seq], 7)
    assert (blocks(policy, seq), filled(policy, seq, 7)) == ([7, 1], [4, 3])
    extend(policy, [seq], 1)
    assert (blocks(policy, seq), filled(policy, seq, 8)) == ([7, 1], [4, 4])
    extend(policy, [seq], 1)
    assert (blocks(policy, seq), filled(policy, seq, 9)) == ([7, 1, 3], [4, 4, 1])


def test_figure_7_stores_two_requests_in_separate_blocks():
    policy, a, b = paged(9, order=[1, 4, 0, 5, 3, 6, 7, 2, 8]), sequence(0, 7), sequence(1, 5)
    admit_and_prefill(policy, [a], 7)
    admit_and_prefill(policy, [b], 5)
    for _ in range(4):  # A needs its third block in the second step, B in the fourth
        extend(policy, [a, b], 1)
    extend(policy, [a], 2)
    assert blocks(policy, a) == [1, 4, 3, 7]
    assert blocks(policy, b) == [0, 5, 6]


def test_figure_8_copies_for_the_first_writer_only():
    policy, a1, a2 = paged(8, order=[7, 1, 3, 0, 2, 4, 5, 6]), sequence(0, 7), sequence(1, 7)
    admit_and_prefill(policy, [a1], 7)
    fork(policy, a1, a2)
    assert blocks(policy, a1) == blocks(policy, a2) == [7, 1]
    assert [policy._pool.ref_count(block) for block in (7, 1)] == [2, 2]
    first = extend(policy, [a1], 1)
    assert first.ops.copies == (Copy(1 * 4, 3 * 4, 4),)
    assert (blocks(policy, a1), policy._pool.ref_count(1)) == ([7, 3], 1)
    second = extend(policy, [a2], 1)
    assert not second.ops
    assert blocks(policy, a2) == [7, 1]


def beams_before_figure_9():
    """Candidates 0 to 2 share three blocks and diverge at the fourth; candidate 3 shares only the
    prompt.
    """
    policy, seqs = paged(13), [sequence(i, 4) for i in range(4)]
    admit_and_prefill(policy, [seqs[0]], 4)
    fork(policy, seqs[0], seqs[3])
    for i in (0, 3, 0, 3):
        extend(policy, [seqs[i]], 4)
    fork(policy, seqs[0], seqs[1])
    fork(policy, seqs[0], seqs[2])
    for seq in seqs:
        extend(policy, [seq], 4)
    return policy, seqs


def test_figure_9_frees_blocks_of_dropped_candidates():
    policy, seqs = beams_before_figure_9()
    before = [[0, 1, 3, 5], [0, 1, 3, 6], [0, 1, 3, 7], [0, 2, 4, 8]]
    assert [blocks(policy, seq) for seq in seqs] == before
    assert policy._pool.free == [12, 11, 10, 9]
    for parent, child in pairs((1, 1, 2, 2)):  # the top four all originate from candidates 1 and 2
        fork(policy, seqs[parent], seqs[child])
    freed = policy._pool.free[4:]
    assert sorted(freed) == [2, 4, 5, 8]
    policy._pool.free[:] = [*freed, 12, 11, 10, 9]
    answer = extend(policy, seqs, 1)
    assert not answer.ops.copies  # the last blocks were full: nothing to copy
    assert [blocks(policy, seq) for seq in seqs] == [
        [0, 1, 3, 6, 9],
        [0, 1, 3, 6, 10],
        [0, 1, 3, 7, 11],
        [0, 1, 3, 7, 12],
    ]
    assert [policy._pool.ref_count(block) for block in (0, 1, 3, 6, 7, 9)] == [4, 4, 4, 2, 2, 1]


def test_pool_of_llama_3_70b_equals_a_published_example():
    """10.7 GB for a request of 32,768 tokens, 5.24 MB a block of 16, 3,052 blocks in 16 GB, 3,051
    of them whole.
    """
    model = read_model("llama-3-70b")
    assert model.kv_bytes_per_token * 32_768 / 1e9 == pytest.approx(10.7, abs=0.05)
    block = model.kv_bytes_per_token * 16
    assert block / 1e6 == pytest.approx(5.24, abs=0.005)
    assert round(16e9 / block) == 3052
    gpu = GpuSpec("gpu", 10**12, 1e12, 1e15, 1e10, 1e11)
    assert ServerSpec("server", gpu, 1, {model.name: 16e9 / 2**30}).kv_slots(model, 16) == 3051 * 16


def test_a_padded_batch_wastes_two_thirds_of_its_attention():
    """Prompts of 128, 64, 32 and 8 tokens, padded to 128: 67% of the pairs of a query and a key are
    padding.
    """
    lengths = (128, 64, 32, 8)
    policy = ContiguousMax(PoolSpec(4 * 256, 256), block_size=16)
    limits = {"max_batch_size": 4, "max_padded_len": 256}
    run = ManualDriver(StaticBatch(policy, Recompute(), **limits, lengths={}))
    for i, length in enumerate(lengths):
        run.add(Request(i, arrival_ps=0, prompt_len=length, output_len=2))
    plan, _ = run.step()
    padded = [chunk.new + chunk.padding for chunk in plan.chunks]
    assert padded == [128] * 4
    needed, computed = (sum(n * (n + 1) // 2 for n in counts) for counts in (lengths, padded))
    assert 1 - needed / computed == pytest.approx(0.67, abs=0.005)
