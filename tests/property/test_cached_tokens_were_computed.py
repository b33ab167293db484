"""Scheduler and prefix cache together, with a memory that stores tokens: whatever an iteration reads is there."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from testbed.sched.prefill import ChunkedPrefill, MixedPrefill, SeparatePrefill

from testbed.contract.memory import TokenMemory
from testbed.core.request import Request
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.eviction.arc import Arc
from testbed.memory.prefix_cache.eviction.fifo import Fifo
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.preemption import Recompute, RecomputeSingleSwapGroup, Swap

MAX_LEN = 96


class Machine:
    """Carries out plans one by one, as an engine on a GPU would."""

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.memory = TokenMemory()
        self.stored = {}
        self.turn = {}

    def step(self):
        """One iteration; False when there is nothing to do."""
        plan = self.scheduler.plan()
        for group in plan.preempted:
            self.turn.pop(group, None)
        for ops in plan.ops:
            self.memory.perform(ops)
        decoding = list(self.scheduler.batch) if plan.decode_seqs else []
        decoding += [seq for group in plan.resumed if group.num_tokens == group.prefill_len for seq in group.sequences]
        for chunk in plan.chunks:
            self.prefill(chunk)
        for seq in decoding:
            self.compute(seq, self.stored[seq.seq_id], 1)
        if plan:
            self.scheduler.commit(plan, 1)
        return bool(plan or plan.rejected)

    def prefill(self, chunk):
        group = chunk.group
        turn = self.turn.setdefault(group, 0)
        self.compute(group.sequences[turn], chunk.stored, chunk.new)
        if chunk.stored + chunk.new == group.prefill_len:
            self.turn[group] += 1
        if chunk.last:
            del self.turn[group]
            for seq in group.sequences:
                self.stored[seq.seq_id] = group.prefill_len

    def compute(self, seq, start, count):
        """Read the first `start` tokens, write the next ones."""
        table = self.scheduler.policy.table(seq)
        assert self.memory.read(table, start) == [token(seq, i) for i in range(start)]
        self.memory.write(table, start, [token(seq, i) for i in range(start, start + count)])
        self.stored[seq.seq_id] = start + count


def token(seq, position):
    """Prompt tokens are named by content, generated ones by sequence."""
    if position < seq.prompt_len:
        return seq.content[position], position
    return "generated", seq.seq_id, position


@st.composite
def requests(draw):
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    size, stories = draw(st.sampled_from([25, 10])), draw(st.sampled_from([1, 3]))
    groups = draw(st.booleans())
    made = []
    for i in range(size):
        prompt_len, output_len = (int(n) for n in rng.integers(1, MAX_LEN // 2 + 1, 2))
        shared, story = int(rng.integers(0, 2 * prompt_len)), int(rng.integers(stories))
        ids = tuple(story * MAX_LEN + k if k < shared else -1 - i for k in range(prompt_len))
        num_seqs = int(rng.choice([1, 2, 3])) if groups else 1
        made.append(Request(i, 0, prompt_len, output_len, num_seqs=num_seqs, prompt_ids=ids))
    return made


@pytest.mark.parametrize("prefill", [SeparatePrefill, MixedPrefill, ChunkedPrefill])
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    requests(),
    st.sampled_from([Recompute, Swap, RecomputeSingleSwapGroup]),
    st.sampled_from([Lru, Fifo, Arc]),
    st.sampled_from([3, 8, 16]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([5, 30, 300]),
    st.sampled_from([0, 150]),
)
def test_nothing_is_read_that_was_not_computed(prefill, asked, preemption, order, block_size, size, budget, num_host):
    policy = PrefixCaching(PoolSpec(size * MAX_LEN, MAX_LEN, num_host), block_size, 0.01, order())
    scheduler = prefill(policy, preemption(), max_num_batched_tokens=budget, max_num_seqs=20)
    machine = Machine(scheduler)
    for request in asked:
        if policy.fits(request.prompt_len, request.output_len, request.num_seqs):
            scheduler.add(request)
        machine.step()
    while machine.step():
        pass
    assert (len(scheduler.waiting), len(scheduler.running), len(scheduler.swapped)) == (0, 0, 0)
    policy.check()
    assert policy.usage().held == 0
