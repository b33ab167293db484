"""Blocks that move to the host and back, and pinned ones: counted by hand on pools of a few blocks
of four slots.
"""

import pytest
from manual_driver import (
    ManualDriver,
    admit,
    admit_and_prefill,
    extend,
    paged,
    release,
    scheduler_of,
    sequence,
)

from testbed.core.request import Request
from testbed.core.sequence import SequenceStatus
from testbed.core.slots import DEVICE, HOST, Copy, Extent, Grant, Move, Refusal
from testbed.memory.paged.paged import Paged
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.preemption import Swap
from testbed.sched.separate import SeparatePrefill


def test_swap_in_needs_slots_for_the_next_step():
    policy, seqs = paged(6, host_blocks=16), [sequence(i, 8) for i in range(2)]
    for seq in seqs:
        admit_and_prefill(policy, [seq], 8)
    policy.move(seqs[:1], HOST)
    extend(policy, seqs[1:], 5)  # four blocks: two are left
    assert policy.move(seqs[:1], DEVICE) is Refusal.LATER
    release(policy, seqs[1])
    assert isinstance(policy.move(seqs[:1], DEVICE), Grant)


@pytest.mark.parametrize("kind", [Paged, PrefixCaching])
@pytest.mark.parametrize("num_tokens", [1, 5, 10, 14])
def test_first_chunk_includes_the_whole_registered_prefix(kind, num_tokens):
    policy, seq = paged(kind=kind), sequence(0, 14, registered_prefix=10)
    policy.register_prefix(10)
    (grant,) = admit_and_prefill(policy, [seq], num_tokens)
    assert (grant.num_cached, seq.num_slots) == (10, max(10, num_tokens))
    assert grant.ops.copies == (Copy(8, 12, 4),)  # its partial last block
    assert policy.table(seq)[:3] == [Extent(0, 4), Extent(4, 4), Extent(12, 4)]


def test_request_too_large_with_the_prefix_is_never_admitted():
    policy = paged(6)
    policy.register_prefix(10)  # three blocks are pinned
    assert policy.max_seq_len(1, 1) == 12
    assert policy.admit([sequence(0, 13)], 13) is Refusal.NEVER
    longer = sequence(1, 21, registered_prefix=10)  # two shared ones, and four of its own
    assert policy.admit([longer], 21) is Refusal.NEVER
    assert isinstance(policy.admit([sequence(2, 20, registered_prefix=10)], 20), list)


def test_prompt_equal_to_prefix_recomputes_its_last_token():
    policy, seq = paged(), sequence(0, 8, registered_prefix=8)
    policy.register_prefix(8)
    (grant,) = admit_and_prefill(policy, [seq], 8)
    assert policy.table(seq) == [Extent(0, 4), Extent(8, 4)]
    assert grant.ops.copies == (Copy(4, 8, 4),)


def test_registered_prefix_lets_a_longer_prompt_fit():
    policy = paged(5)
    policy.register_prefix(8)
    assert not isinstance(admit(policy, [sequence(0, 20, registered_prefix=8)], 20), Refusal)
    assert admit(policy, [sequence(1, 20)], 20) is Refusal.NEVER


def test_full_host_refuses_swap_out_until_released():
    policy, seqs = paged(host_blocks=3), [sequence(i, 10) for i in range(2)]
    for seq in seqs:
        admit_and_prefill(policy, [seq], 10)
    answer = policy.move(seqs[:1], HOST)
    assert answer.ops.moves == (Move(DEVICE, HOST, (Copy(0, 0, 4), Copy(4, 4, 4), Copy(8, 8, 4))),)
    before = policy.usage()
    assert policy.move(seqs[1:], HOST) is Refusal.LATER
    assert policy.usage() == before
    release(policy, seqs[0])
    assert isinstance(policy.move(seqs[1:], HOST), Grant)


def test_full_host_falls_back_to_recompute():
    run = ManualDriver(scheduler_of(SeparatePrefill, paged(host_blocks=3), Swap()))
    groups = [run.add(Request(i, arrival_ps=0, prompt_len=9, output_len=5)) for i in range(2)]
    run.step()
    run.step()
    run.preempt()
    run.preempt()
    assert [group.status for group in groups] == [SequenceStatus.WAITING, SequenceStatus.SWAPPED]
    assert [(group.num_swaps, group.num_recomputes) for group in groups] == [(0, 1), (1, 0)]
