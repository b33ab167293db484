"""Swap space that is full to its last block."""

from by_hand import ByHand, extend, release, scheduler_of, seat, sequence
from ticks import OneMillisecond

from testbed.core.request import Request
from testbed.core.sequence import SequenceStatus
from testbed.core.slots import DEVICE, HOST, Copy, Grant, Move, Refusal
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.sched.decoding import preempt
from testbed.sched.plan import Plan
from testbed.sched.preemption import Swap
from testbed.sched.separate import SeparatePrefill
from testbed.sim.simulation import simulate


def paged(host_blocks, num_blocks=16):
    return Paged(PoolSpec(num_blocks * 4, 64, host(host_blocks * 4)), block_size=4, watermark=0)


def test_the_last_block_of_the_host_is_used_and_then_the_answer_is_later():
    policy, seqs = paged(host_blocks=3), [sequence(i, 10) for i in range(2)]
    for seq in seqs:
        seat(policy, [seq], 10)
    answer = policy.move(seqs[:1], HOST)
    assert answer.ops.moves == (Move(DEVICE, HOST, (Copy(0, 0, 4), Copy(4, 4, 4), Copy(8, 8, 4))),)
    before = policy.usage()
    assert policy.move(seqs[1:], HOST) is Refusal.LATER
    assert policy.usage() == before
    release(policy, seqs[0])
    assert isinstance(policy.move(seqs[1:], HOST), Grant)
    policy.check()


def test_a_shared_block_moves_once_and_is_shared_again():
    policy, (parent, child) = paged(host_blocks=3), [sequence(i, 10) for i in range(2)]
    seat(policy, [parent], 8)
    policy.fork(parent, child)
    child.room = child.stored = 8
    extend(policy, [parent], 1)
    assert len(policy.move([parent, child], HOST).ops.moves[0].copies) == 3
    policy.move([parent, child], DEVICE)
    assert policy.table(parent)[:2] == policy.table(child)
    policy.check()


def test_a_group_falls_back_to_recompute_when_the_host_is_full():
    run = ByHand(scheduler_of(SeparatePrefill, paged(host_blocks=3), Swap()))
    groups = [run.add(Request(i, 0, 9, 5)) for i in range(2)]
    run.step()
    run.step()
    plan = Plan()
    preempt(run.residents, plan)
    preempt(run.residents, plan)
    assert [group.status for group in groups] == [SequenceStatus.WAITING, SequenceStatus.SWAPPED]
    assert [(group.num_swaps, group.num_recomputes) for group in groups] == [(0, 1), (1, 0)]


def test_every_request_knows_how_often_it_was_swapped_and_recomputed():
    policy = paged(host_blocks=4)
    requests = [Request(i, 0, 9, 20) for i in range(6)]
    recorder = simulate(requests, scheduler_of(SeparatePrefill, policy, Swap()), OneMillisecond(), 64)
    columns = recorder.requests.columns()
    totals = recorder.totals
    assert totals.swaps > 0
    assert totals.recomputes > 0
    assert (columns["num_swaps"].sum(), columns["num_recomputes"].sum()) == (totals.swaps, totals.recomputes)
    first = columns["request_id"].tolist().index(0)
    assert columns["num_swaps"][first] == columns["num_recomputes"][first] == 0  # first come, first served
