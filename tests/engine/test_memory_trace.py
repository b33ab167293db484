"""The tracer: exact owners and counts at each time of scripted calls, and runs that tracing does
not change.
"""

from collections import Counter
from dataclasses import replace

import pytest
from manual_driver import admit_and_prefill, extend, fork, paged, release, scheduler_of
from tiny import analytic
from traced_memory import trace_memory

from testbed.core.layers import KvGroup
from testbed.core.request import PS, Incoming, Request
from testbed.core.sequence import Sequence, SequenceGroup
from testbed.core.slots import DEVICE, HOST
from testbed.engine.memory_trace import MemoryTrace, TracedPart, Tracer, named_parts
from testbed.engine.simulation import simulate
from testbed.memory.contiguous.reservations import ContiguousMax, ContiguousPow2
from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.run.oracles import with_lengths
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute, Swap
from testbed.sched.separate import SeparatePrefill

COST = analytic(overhead_s=1e-3, copy_s=1e-5)
EVERY_STATE = TracedPart(max_frames=10**6)


class Script:
    """Calls to a policy whose clock is traced, each at a time of its own; every sequence is a group
    of the scheduler's.
    """

    def __init__(self, policy, start_ps=0, stop_ps=10**6, max_frames=100):
        self.policy = policy
        self.trace = MemoryTrace(
            policy.usage().total, policy.block_size, start_ps, policy.block_size
        )
        self.scheduler = scheduler_of(MixedPrefill, policy, Recompute())
        self.tracer = Tracer(
            self.scheduler, self.trace, TracedPart(start_ps, stop_ps, max_frames=max_frames)
        )

    def at(self, time_ps, call, *arguments):
        """`call` takes the policy first."""
        if time_ps > self.tracer.now:
            self.tracer.run(until=time_ps)
        return call(self.policy, *arguments)

    def admit(self, time_ps, seqs, num_tokens):
        """These sequences are computed, and run from then on."""
        self.at(time_ps, admit_and_prefill, seqs, num_tokens)
        for seq in seqs:
            self.seat(seq)

    def fork(self, time_ps, parent, child):
        self.at(time_ps, fork, parent, child)
        self.seat(child)

    def seat(self, seq):
        group = SequenceGroup(Incoming(seq.request_id, 0, seq.prompt_len), [seq])
        group.resident = [seq]
        self.scheduler.state.running[seq.seq_id] = group

    def move(self, time_ps, seqs, tier):
        self.at(time_ps, lambda policy: policy.move(seqs, tier))
        state = self.scheduler.state
        for seq in seqs:
            if tier == HOST:
                state.swapped.append(state.running.pop(seq.seq_id))
            else:
                group = next(group for group in state.swapped if group.sequences == [seq])
                state.swapped.remove(group)
                state.running[seq.seq_id] = group

    def release(self, time_ps, seq):
        self.at(time_ps, release, seq)
        state = self.scheduler.state
        state.running.pop(seq.seq_id, None)
        for group in [group for group in state.swapped if group.sequences == [seq]]:
            state.swapped.remove(group)

    def frames(self, end_ps):
        self.tracer.run(until=end_ps)
        self.tracer.finish(end_ps)
        return self.trace.frames


def sequence(seq_id, request_id, prompt_len=7, **request):
    return Sequence(seq_id, Incoming(request_id, 0, prompt_len, **request))


def tables(frame, block_size=4):
    """Physical blocks of each sequence; those on the host are negative, minus one."""
    return {
        seq_id: [e.start // block_size for e in held.device]
        + [-1 - e.start // block_size for e in held.host]
        for seq_id, held in frame.held.items()
    }


def counts(frame):
    return Counter(extent for held in frame.held.values() for extent in held.device)


def test_trace_of_figure_7_shows_exact_owners():
    blocks = BlockPool(9)
    blocks.free = [8, 6, 4, 0, 3, 2, 5, 1, 7]
    script = Script(paged(9, blocks=blocks))
    a, b = sequence(0, 10), sequence(1, 11, prompt_len=5)
    script.admit(5, [a], 7)
    script.admit(5, [b], 5)
    script.at(8, extend, [a, b], 1)
    script.at(9, extend, [a, b], 1)
    script.release(12, a)
    frames = script.frames(20)
    assert [(f.start_ps, f.end_ps) for f in frames] == [(0, 5), (5, 8), (8, 9), (9, 12), (12, 20)]
    assert [tables(f) for f in frames] == [
        {},
        {0: [7, 1], 1: [5, 2]},
        {0: [7, 1], 1: [5, 2]},
        {0: [7, 1, 3], 1: [5, 2]},
        {1: [5, 2]},
    ]
    assert [[held.num_tokens for held in f.held.values()] for f in frames] == [
        [],
        [7, 5],
        [8, 6],
        [9, 7],
        [7],
    ]
    assert [held.request_id for held in frames[1].held.values()] == [10, 11]


def test_swapped_out_group_is_absent_from_the_device():
    script = Script(Paged(PoolSpec(36, 64, host(16)), block_size=4, watermark=0))
    parent, child = sequence(0, 3), sequence(1, 3)
    script.admit(0, [parent], 7)
    script.fork(0, parent, child)
    script.move(1, [parent, child], HOST)
    script.move(2, [parent, child], DEVICE)
    script.move(3, [parent, child], HOST)
    script.release(4, parent)
    script.release(4, child)
    frames = script.frames(5)
    assert [tables(f)[1] for f in frames[:3]] == [[0, 1], [-1, -2], [1, 0]]
    assert [held.num_tokens for held in frames[3].held.values()] == [7, 7]
    assert not frames[4].held


def test_trace_is_limited_to_its_window_and_thinned():
    script = Script(
        Paged(PoolSpec(4000, 4000), block_size=4, watermark=0),
        start_ps=95,
        stop_ps=500,
        max_frames=10,
    )
    seq = sequence(0, 1)
    script.admit(0, [seq], 1)
    for time in range(10, 1000, 10):
        script.at(time, extend, [seq], 1)
    frames = script.frames(1000)
    assert (frames[0].start_ps, frames[-1].end_ps, script.trace.num_states) == (95, 480, 41)
    assert [f.start_ps for f in frames] == [95, 150, 220, 280, 350, 410, 470]
    assert all(f.held[0].num_tokens == f.start_ps // 10 + 1 for f in frames)


def test_long_lasting_state_is_never_thinned_out():
    script = Script(Paged(PoolSpec(400, 400), block_size=4, watermark=0), max_frames=4)
    seq = sequence(0, 1)
    for time in range(0, 1000, 10):
        script.admit(time, [seq], 1)
        script.release(time + 1, seq)
    frames = script.frames(100_000)
    assert (frames[-1].held, frames[-1].end_ps) == ({}, 100_000)


def requests():
    """Prompts of which many begin alike."""
    shapes = [(i, 5 + i % 11, 3 + i * 7 % 40) for i in range(60)]
    return [
        Request(
            i,
            arrival_ps=i * PS // 500,
            prompt_len=prompt,
            output_len=output,
            num_seqs=1 + i % 2,
            prompt_ids=tuple(range(i % 3, i % 3 + prompt)),
        )
        for i, prompt, output in shapes
    ]


def scheduler(policy, rule, lengths=None):
    make = with_lengths(policy, {} if lengths is None else lengths)
    return (ChunkedPrefill if policy is ContiguousPow2 else SeparatePrefill)(
        make(PoolSpec(256, 64, host(128)), block_size=4),
        rule(),
        max_num_batched_tokens=100,
        max_num_seqs=20,
    )


@pytest.mark.parametrize("policy", [Paged, PrefixCaching, ContiguousMax, ContiguousPow2])
@pytest.mark.parametrize("rule", [Recompute, Swap])
def test_tracing_changes_no_result_and_frames_are_consistent(policy, rule):
    lengths = {}
    plain = simulate(requests(), scheduler(policy, rule, lengths), COST, 64, lengths=lengths)
    traced = scheduler(policy, rule, lengths)
    trace = trace_memory(requests(), traced, COST, 64, EVERY_STATE, lengths=lengths)
    assert trace.end_ps == plain.end_ps
    assert len(trace.frames) == trace.num_states >= plain.totals.iterations
    assert trace.requests.keys() == {r.request_id for r in requests()} - plain.rejections.keys()
    live = 0
    for before, frame in zip(trace.frames, trace.frames[1:], strict=False):
        assert before.end_ps == frame.start_ps
        live += sum(held.num_tokens for held in before.held.values() if not held.host) > 0
        used = {slot for e in counts(before) for slot in range(e.start, e.start + e.length)}
        assert used <= set(range(256))
        others = before.pools[0].rounding + before.pools[0].cached
        assert not used & {slot for e in others for slot in range(e.start, e.start + e.length)}
    assert live


def test_traced_window_equals_that_part_of_the_run():
    whole = trace_memory(requests(), scheduler(Paged, Swap), COST, 64, EVERY_STATE)
    start, stop = whole.end_ps // 3, whole.end_ps // 2
    part = trace_memory(
        requests(),
        scheduler(Paged, Swap),
        COST,
        64,
        replace(EVERY_STATE, start_ps=start, stop_ps=stop),
    )
    inside = [f for f in whole.frames if f.start_ps >= start and f.end_ps <= stop]
    assert len(inside) > 20
    assert [f for f in part.frames if f in inside] == inside
    assert part.end_ps == stop


def test_pool_that_is_looked_at_rarely_is_seen_as_it_is():
    whole = trace_memory(requests(), scheduler(Paged, Swap), COST, 64, EVERY_STATE)
    gap_ps = whole.end_ps // 50
    few = trace_memory(requests(), scheduler(Paged, Swap), COST, 64, TracedPart(gap_ps=gap_ps))
    assert 20 < len(few.frames) < len(whole.frames) / 4
    for frame in few.frames:
        seen = [f for f in whole.frames if f.start_ps <= frame.start_ps < f.end_ps]
        assert [(f.held, f.pools) for f in seen] == [(frame.held, frame.pools)]


def test_parts_of_a_table_have_the_names_of_their_groups():
    groups = (KvGroup("full", 1, slot_bytes=1), KvGroup("window", 1, slot_bytes=1, window=8))
    pool = PoolSpec(64, 64, groups=groups)
    assert named_parts([(0, 4)], pool) == (("", 4),)
    assert named_parts([(0, 4), (1, 2), (1, 3)], pool) == (
        ("full", 4),
        ("window 1", 2),
        ("window 2", 3),
    )
