"""Copies of forks where memory is not shared: what they copy, that their slots are theirs, and that they come first."""

import pytest
from manual_driver import ManualDriver, scheduler_of, sequence

from testbed.core.request import Request
from testbed.core.slots import Copy, Extent
from testbed.memory.contiguous.contiguous import ContiguousMax, ContiguousOracle
from testbed.memory.policy import MemoryPolicy, PoolSpec
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute
from testbed.sched.separate import SeparatePrefill
from testbed.sched.static_batch import StaticBatch

ITERATION_LEVEL = [SeparatePrefill, MixedPrefill, ChunkedPrefill]


def static(policy):
    return ManualDriver(StaticBatch(policy, Recompute(), max_batch_size=4, max_padded_len=64))


def driver(kind, policy):
    return ManualDriver(scheduler_of(kind, policy, Recompute()))


def pool(kind=ContiguousMax):
    return kind(PoolSpec(1024, 64), block_size=4)


def copies_of(plan):
    return [copy for ops in plan.ops for copy in ops.copies]


def held(run):
    """The slots that the residents hold, and what the allocator's rounding adds to them."""
    extents = [*run.policy.non_sequence_slots().rounding]
    extents += [e for group in run.state.running.values() for seq in group.resident for e in run.policy.table(seq)]
    return {slot for start, length in extents for slot in range(start, start + length)}


def served(run):
    """All copies of all plans until nothing is left to do; each lies in slots that are held."""
    copies = []
    while run.state.running or run.state.waiting:
        plan = run.scheduler.plan()
        for copy in copies_of(plan):
            assert {copy.dst, copy.dst + copy.length - 1, copy.src} <= held(run), (
                f"{copy} into slots that were returned"
            )
            copies.append(copy)
        run.carry_out(plan)
    return copies


@pytest.mark.parametrize(
    "make", [static, *[lambda policy, kind=kind: driver(kind, policy) for kind in ITERATION_LEVEL]]
)
def test_group_finished_at_its_first_token_is_not_forked(make):
    run = make(pool(ContiguousOracle))
    run.add(Request(0, 0, 10, 1, num_seqs=3))
    assert served(run) == []
    run.add(Request(1, 0, 10, 1, num_seqs=3))
    run.add(Request(2, 0, 10, 4, num_seqs=2))
    (copy,) = served(run)
    assert copy.length == 16  # the range of four blocks that 14 slots get


def test_static_batches_copy_only_within_their_slots():
    run = static(pool())
    for i in range(9):
        run.add(Request(i, 0, 5 + i, 1 + i % 3, num_seqs=2))
    assert [copy.length for copy in served(run)] == [64 for i in range(9) if i % 3]


@pytest.mark.parametrize("kind", ITERATION_LEVEL)
def test_preemption_drops_pending_fork_copies(kind):
    run = driver(kind, pool())
    groups = [run.add(Request(i, 0, 10 + i, 9, num_seqs=2)) for i in range(2)]
    run.step()
    assert run.preempt().preempted == groups[1:]
    assert [copy.length for copy in copies_of(run.scheduler.plan())] == [64]


class InPieces(MemoryPolicy):
    """Tables of several extents that somebody has thought up."""

    def table(self, seq):
        return [[Extent(0, 4), Extent(20, 4), Extent(8, 4)], [Extent(40, 6), Extent(60, 6)]][seq.seq_id]

    admit = extend = release = usage = None


def test_a_fork_copies_all_extents_of_a_table():
    parent, child = sequence(0, 10), sequence(1, 10)
    parent.num_slots = parent.num_stored = 10
    ops = InPieces().fork(parent, child)
    assert ops.copies == (Copy(0, 40, 4), Copy(20, 44, 2), Copy(22, 60, 2), Copy(8, 62, 2))
