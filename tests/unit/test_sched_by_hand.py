"""Who runs next, who gives way and who comes back first: plans small enough to be written down beforehand."""

import pytest
from by_hand import ByHand, scheduler_of

from testbed.core.request import Request
from testbed.core.sequence import SequenceStatus
from testbed.core.slots import Copy, Ops
from testbed.memory.contiguous.contiguous import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.mixed_2023 import Mixed2023
from testbed.sched.plan import summed
from testbed.sched.preemption import Recompute, RecomputeSingleSwapGroup, Swap
from testbed.sched.separate import SeparatePrefill
from testbed.sched.static_batch import StaticBatch

KINDS = [SeparatePrefill, MixedPrefill, ChunkedPrefill]


def paged(num_blocks=100, host_blocks=100):
    return Paged(PoolSpec(num_blocks * 4, 64, host(host_blocks * 4)), block_size=4, watermark=0)


def by_hand(kind, rule=Recompute, policy=None, **limits):
    return ByHand(scheduler_of(kind, policy or paged(), rule(), **limits))


def add(run, *requests, num_seqs=1):
    """Requests of these prompt and output lengths."""
    first = len(run.outputs.requests)
    return [run.add(Request(i, 0, *lengths, num_seqs=num_seqs)) for i, lengths in enumerate(requests, first)]


def step(run):
    """Sequences that decode, and tokens of each chunk."""
    plan, _ = run.step()
    return plan.decode_seqs, [chunk.new for chunk in plan.chunks]


@pytest.mark.parametrize(
    ("kind", "second", "third"),
    [
        (SeparatePrefill, (0, [6]), (2, [])),
        (MixedPrefill, (1, []), (1, [])),  # 6 tokens do not go beside a decode: they wait for it
        (ChunkedPrefill, (1, [5]), (1, [1])),
    ],
)
def test_decodes_count_against_the_budget_or_wait_for_prompts(kind, second, third):
    run = by_hand(kind, max_num_batched_tokens=6)
    add(run, (6, 9))
    assert step(run) == (0, [6])
    add(run, (6, 9))
    assert (step(run), step(run)) == (second, third)


def test_a_prompt_that_fills_what_decodes_leave_runs_beside_them_and_a_larger_one_ahead():
    run = by_hand(MixedPrefill, max_num_batched_tokens=6)
    add(run, (6, 9))
    step(run)
    add(run, (5, 9), (7, 9))
    assert [step(run), step(run), step(run)] == [(1, [5]), (0, [7]), (3, [])]


def test_a_full_iteration_admits_nobody():
    run = by_hand(ChunkedPrefill, max_num_batched_tokens=4)
    add(run, (4, 9), (4, 9))
    assert step(run) == (0, [4])
    assert list(run.residents.running) == [0]


def test_a_chunk_takes_room_for_itself_alone():
    run = by_hand(ChunkedPrefill, max_num_batched_tokens=8)
    (group,) = add(run, (40, 2))
    step(run)
    assert (group.sequences[0].room, run.policy.usage().held) == (8, 8)


def test_the_last_token_of_a_prompt_is_computed_even_where_all_of_it_is_there_already():
    policy = paged()
    policy.register_prefix(8)
    run = by_hand(SeparatePrefill, policy=policy)
    group = run.add(Request(0, 0, 8, 3, prefix=8))
    plan, outcome = run.step()
    assert [(chunk.new, chunk.stored, chunk.last) for chunk in plan.chunks] == [(1, 7, True)]
    assert outcome.first_tokens == [group]


def test_the_second_chunk_goes_on_where_the_first_ended():
    run = by_hand(ChunkedPrefill, max_num_batched_tokens=8)
    add(run, (20, 2))
    chunks = [chunk for _ in range(3) for chunk in run.step()[0].chunks]
    assert [(chunk.stored, chunk.new, chunk.last) for chunk in chunks] == [(0, 8, False), (8, 8, False), (16, 4, True)]


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_refused_keeps_its_place_and_holds_up_those_behind_it(kind):
    run = by_hand(kind, policy=paged(num_blocks=8))
    groups = add(run, (16, 3), (24, 3), (4, 3))
    step(run)
    assert list(run.residents.waiting) == groups[1:]
    while groups[0].status is not SequenceStatus.FINISHED:
        step(run)
    step(run)
    assert list(run.residents.running.values()) == groups[1:]


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_that_came_gives_way_and_waits_at_the_head_of_the_queue(kind):
    run = by_hand(kind, policy=paged(num_blocks=6))
    groups = add(run, (8, 12), (8, 12), (8, 12))  # three times two blocks
    step(run)
    (newcomer,) = add(run, (4, 2))
    plan, _ = run.step()
    assert (plan.preempted, plan.decode_seqs) == ([groups[2]], 2)
    assert list(run.residents.waiting) == [groups[2], newcomer]
    assert not plan.chunks  # nobody is let in by a plan that took room


def test_the_earliest_comes_back_first_before_anybody_new_and_not_while_room_is_taken():
    """Six blocks for three times two: the third gives way at once, the second four steps later, at the next block."""
    run = by_hand(SeparatePrefill, Swap, policy=paged(num_blocks=6))
    one, two, three = add(run, (8, 9), (8, 9), (8, 9))
    step(run)
    (newcomer,) = add(run, (4, 2))
    events = []
    for i in range(14):
        plan, _ = run.step()
        run.policy.check()
        events += [(i, "out", group) for group in plan.preempted] + [(i, "back", group) for group in plan.resumed]
        events += [(i, "in", chunk.group) for chunk in plan.chunks]
    assert events == [(0, "out", three), (4, "out", two), (8, "back", two), (12, "back", three), (13, "in", newcomer)]
    assert one.num_swaps == 0


def test_a_group_that_comes_back_steps_with_all_its_samples_beside_longer_contexts():
    """The second request ends in its third token: then two samples of 3 tokens come back, and read 4 each."""
    run = by_hand(SeparatePrefill, Swap, policy=paged(num_blocks=9))
    add(run, (20, 12), (8, 3))
    (pair,) = add(run, (3, 9), num_seqs=2)
    plans = [run.step()[0] for _ in range(4)]
    assert (plans[1].preempted, plans[3].resumed) == ([pair], [pair])
    assert (plans[3].decode_seqs, plans[3].decode_context, plans[3].decode_longest) == (3, 23 + 2 * 4, 23)


def test_nobody_comes_back_in_the_iteration_that_took_room_from_another():
    """Two samples are on the host when a long request has to be computed again: it leaves more room than they need."""
    run = by_hand(SeparatePrefill, RecomputeSingleSwapGroup, policy=paged(num_blocks=9))
    _, long = add(run, (4, 30), (16, 30))
    (pair,) = add(run, (4, 30), num_seqs=2)
    plans = [run.step()[0] for _ in range(11)]
    assert plans[1].preempted == [pair]
    assert (plans[9].preempted, plans[9].resumed) == ([long], [])
    assert plans[10].resumed == [pair]


def test_samples_go_to_the_host_and_single_sequences_are_computed_again():
    run = by_hand(SeparatePrefill, RecomputeSingleSwapGroup)
    (single,), (pair,) = add(run, (8, 9)), add(run, (8, 9), num_seqs=2)
    step(run)
    step(run)
    rule = run.residents.preemption
    assert (rule.recovery(single).value, rule.recovery(pair).value) == ("recompute", "swap")


@pytest.mark.parametrize("rule", [Recompute, Swap])
def test_places_are_counted_by_sequences_and_free_when_a_group_ends_or_goes_to_the_host(rule):
    run = by_hand(SeparatePrefill, rule, policy=paged(num_blocks=7), max_num_seqs=4)
    groups = add(run, (7, 9), (7, 9), num_seqs=2)
    assert step(run) == (0, [7, 7])
    assert run.residents.num_seqs == 4
    while groups[1] in run.residents.running.values():
        step(run)
    assert run.residents.num_seqs == 2
    for _ in range(60):
        run.step()
    assert all(group.status is SequenceStatus.FINISHED for group in groups)
    assert (run.residents.num_seqs, run.policy.usage().held) == (0, 0)


def test_the_2023_limit_counts_groups_and_the_sequences_of_the_next():
    run = by_hand(Mixed2023, max_num_seqs=4)
    groups = add(run, (4, 9), (4, 9), (4, 9), num_seqs=2)
    step(run)
    assert list(run.residents.running.values()) == groups  # 2 groups and 2 sequences are 4


def static(**limits):
    policy = ContiguousMax(PoolSpec(16 * 64, 64), block_size=4)
    return ByHand(StaticBatch(policy, Recompute(), **{"max_batch_size": 2, "max_padded_len": 64, **limits}))


def test_a_static_batch_takes_as_many_as_it_may_and_pads_to_exactly_the_longest_sequence():
    run = static()
    add(run, (4, 2), (4, 2), (4, 2))
    assert step(run) == (0, [4, 4])
    run = static(max_batch_size=9, max_padded_len=20)
    add(run, (8, 2), (4, 12), (9, 12))
    assert step(run) == (0, [8, 4])  # 8 + 12 are 20, 9 + 12 are not


def test_a_policy_that_does_not_share_gives_every_sample_room_for_the_whole_prompt():
    policy = ContiguousMax(PoolSpec(16 * 64, 64), block_size=4)
    run = by_hand(ChunkedPrefill, policy=policy, max_num_batched_tokens=8)
    (group,) = add(run, (20, 3), num_seqs=2)
    step(run)
    assert [seq.room for seq in group.sequences] == [20, 20]


def test_operations_are_summed_by_kind():
    ops = [Ops((Copy(0, 4, 4), Copy(4, 8, 4), Copy(0, 8, 2))), Ops((Copy(8, 0, 4),), extra=(("pages", 3),))]
    assert summed([*ops, Ops(extra=(("pages", 4),))]) == (((2, 1), (4, 3)), (), (("pages", 7),))
