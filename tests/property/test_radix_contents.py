"""The radix cache compares arrays of numbers; the plain statement compares the contents."""

import hypothesis.strategies as st
import numpy as np
import pytest
from depth import examples
from hypothesis import HealthCheck, example, given, settings
from strategies import MAX_LEN, of_one_sequence, with_answers, with_shared_prompts, workloads
from test_fast_equals_slow import ANALYTIC

from testbed.core.request import Request
from testbed.core.sequence import Batch, Sequence
from testbed.core.slots import GroupTable
from testbed.engine.simulation import simulate
from testbed.memory.paged.block_boundaries import BlockIndex
from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.paged.block_table import BlockTable, Tables
from testbed.memory.policy import PoolSpec
from testbed.memory.radix.block_contents import ContentNames, plain_contents
from testbed.memory.radix.radix import Radix
from testbed.memory.shared_reads import read_again
from testbed.sched.preemption import Recompute
from testbed.sched.sglang import SGLang

many = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
IDS = st.sampled_from([0, 1, -1, 5, 1 << 40, 1 << 58, 1 << 62, -(1 << 62), 1 << 70])
PROMPTS = st.lists(st.lists(IDS, min_size=1, max_size=6), min_size=2, max_size=5)


def sequence(seq_id, ids, each, answer_id=None):
    values = {"prompt_ids": ids, "tokens_per_id": each, "answer_id": answer_id}
    request = Request(seq_id, 0, len(ids) * each - 1 or 1, 9, **values)
    return Sequence(seq_id, request.incoming)


@many
@example([[-(1 << 62)], [0]], (16, 4), [None] * 2)  # times four it is 0 in 64 bits
@given(
    PROMPTS,
    st.sampled_from([(1, 1), (16, 1), (16, 16), (16, 4), (4, 16), (1, 2)]),
    st.lists(st.sampled_from([None, 0, 1, 3, 1 << 50, 1 << 62]), min_size=5, max_size=5),
)
def test_two_blocks_have_one_number_where_they_store_the_same(prompts, sizes, answer_ids):
    each, block_size = sizes
    names, pairs = ContentNames(block_size), []
    for number, ids in enumerate(prompts):
        seq = sequence(number, tuple(ids), each, answer_ids[number])
        num_blocks = seq.prompt_len // block_size + 2
        found, plain = names.of(seq, num_blocks), plain_contents(seq, num_blocks, block_size)
        pairs += zip(found, plain, strict=True)
    assert len(set(pairs)) == len({number for number, _ in pairs}) == len({c for _, c in pairs})


class PlainRadix(Radix):
    """The same by tuples of contents and walks."""

    def _contents(self, seq, num_blocks):
        return plain_contents(seq, num_blocks, self.block_size)

    def repeated_reads(self, batch, others=()):
        tables = [
            (seq.num_slots, [GroupTable(0, self.table(seq), 0, 1)]) for seq in (*batch, *others)
        ]
        return read_again(tables)


@many
@given(
    with_answers(st.builds(of_one_sequence, with_shared_prompts(workloads()))),
    st.sampled_from([1, 4, 16]),
    st.sampled_from([400, 900]),
    st.sampled_from([None, 48]),
)
def test_runs_are_those_of_plain_contents(requests, block_size, num_slots, chunk):
    def columns(kind):
        policy = kind(PoolSpec(num_slots, MAX_LEN), block_size)
        options = {"max_running_requests": 8, "chunked_prefill_size": chunk}
        scheduler = SGLang(policy, Recompute(), context_length=MAX_LEN, **options)
        recorder = simulate(requests, scheduler, ANALYTIC, MAX_LEN)
        return recorder.requests.columns(), policy.counters()

    fast, plain = columns(Radix), columns(PlainRadix)
    assert fast[1] == plain[1]
    for name, column in plain[0].items():
        assert np.array_equal(fast[0][name], column), name


@pytest.mark.parametrize("num_seqs", [1, 3])
@pytest.mark.parametrize("num_steps", [1, 2, 7])
def test_steps_at_once_take_the_blocks_of_steps_one_by_one(num_seqs, num_steps):
    def grown(spans):
        pool = BlockPool(64)
        tables, batch = Tables(pool, 1), Batch()
        for seq_id in range(num_seqs):
            seq = Sequence(seq_id, Request(seq_id, 0, 1, 9).incoming)
            tables.held[seq_id] = BlockTable(seq, [])
            batch.add(seq)
        index = batch.index(tables, lambda batch: BlockIndex(batch, tables, pool))
        sums = [index.grow(steps) for steps in spans]
        return [table.blocks for table in tables.held.values()], pool.free, sums

    blocks, free, (growth,) = grown([num_steps])
    assert (blocks, free) == grown([1] * num_steps)[:2]
    slots = [num_seqs * step**power for power in range(3) for step in range(num_steps)]
    by_power = (sum(slots[i * num_steps : (i + 1) * num_steps]) for i in range(3))
    assert growth == tuple(by_power)
