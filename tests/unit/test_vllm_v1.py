"""What vLLM V1's scheduler does in one iteration, rule by rule, on pools of a few blocks of four slots."""

import pytest
from by_hand import ByHand

from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.core.sequence import SequenceStatus
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.preemption import Recompute
from testbed.sched.vllm_v1 import VllmV1

LIMITS = {
    "max_num_batched_tokens": 16,
    "max_num_seqs": 8,
    "long_prefill_token_threshold": 0,
    "scheduler_reserve_full_isl": True,
}


def server(num_blocks, **limits):
    policy = Paged(PoolSpec(num_blocks * 4, 1000), block_size=4, watermark=0)
    return ByHand(VllmV1(policy, Recompute(), **{**LIMITS, **limits}))


def add(run, *requests):
    """Requests of these prompt and output lengths."""
    return [run.add(Request(i, 0, *lengths)) for i, lengths in enumerate(requests, len(run.outputs.requests))]


def step(run):
    """The steps of decoding sequences, and (request, tokens) of each chunk; nothing else is in the plan."""
    plan, _ = run.step()
    run.policy.check()
    return plan.decode_seqs, [(chunk.group.request.request_id, chunk.new) for chunk in plan.chunks]


def test_decodes_come_first_and_prompts_share_what_they_leave_of_the_budget():
    run = server(100)
    add(run, (6, 9), (5, 9), (12, 9))
    assert step(run) == (0, [(0, 6), (1, 5), (2, 5)])
    add(run, (20, 9))
    assert step(run) == (2, [(2, 7), (3, 7)])
    assert step(run) == (3, [(3, 13)])
    assert step(run) == (4, [])


def test_no_more_sequences_than_max_num_seqs_are_resident():
    run = server(100, max_num_seqs=2)
    add(run, (2, 3), (2, 9), (2, 9))
    assert step(run) == (0, [(0, 2), (1, 2)])
    assert [step(run), step(run)] == [(2, []), (2, [])]
    assert step(run) == (1, [(2, 2)])


def test_with_a_threshold_several_prompts_are_under_way_in_order():
    run = server(100, long_prefill_token_threshold=6)
    add(run, (13, 9), (8, 9), (20, 9))
    assert step(run) == (0, [(0, 6), (1, 6), (2, 4)])
    assert step(run) == (0, [(0, 6), (1, 2), (2, 6)])
    assert step(run) == (1, [(0, 1), (2, 6)])


def test_the_victim_is_the_last_and_the_step_that_preempted_admits_nobody():
    run = server(6)
    first, second = add(run, (8, 9), (8, 9))
    assert step(run) == (0, [(0, 8), (1, 8)])
    assert step(run) == (2, [])  # both take their third block, so the pool is full
    assert [step(run) for _ in range(3)] == [(2, [])] * 3
    late = add(run, (1, 1))
    plan, _ = run.step()
    assert (plan.preempted, plan.decode_seqs, plan.chunks) == ([second], 1, [])
    assert [*run.residents.waiting] == [second, *late]
    assert first.status is SequenceStatus.RUNNING


def test_a_step_that_preempts_still_serves_prompts_under_way():
    run = server(8, long_prefill_token_threshold=4, scheduler_reserve_full_isl=False)
    _, second, third = add(run, (4, 20), (13, 9), (24, 9))
    assert step(run) == (0, [(0, 4), (1, 4), (2, 4)])
    assert step(run) == (1, [(1, 4), (2, 4)])
    assert step(run) == (1, [(1, 4), (2, 4)])  # 2 + 3 + 3 blocks: the pool is full
    plan, _ = run.step()
    assert [(chunk.group, chunk.new) for chunk in plan.chunks] == [(second, 1)]
    assert (plan.preempted, plan.decode_seqs) == ([third], 1)


def test_a_prompt_under_way_without_room_preempts_itself():
    run = server(6, scheduler_reserve_full_isl=False)
    _, second = add(run, (10, 20), (14, 9))
    assert step(run) == (0, [(0, 10), (1, 6)])
    assert run.policy.usage().free == 4
    plan, _ = run.step()
    assert (plan.preempted, plan.decode_seqs, plan.chunks) == ([second], 1, [])
    assert run.policy.usage().held == 12
    run.policy.check()


@pytest.mark.parametrize(("whole", "chunks"), [(True, [(0, 10)]), (False, [(0, 10), (1, 6)])])
def test_admission_asks_for_room_for_the_whole_prompt_or_for_its_first_chunk(whole, chunks):
    run = server(6, scheduler_reserve_full_isl=whole)
    add(run, (10, 20), (14, 9))
    assert step(run) == (0, chunks)


def test_a_waiting_request_that_is_refused_holds_up_those_behind_it():
    run = server(6)
    add(run, (10, 20), (20, 1), (1, 1))
    assert step(run) == (0, [(0, 10)])
    assert step(run) == (1, [])


def test_the_budget_must_serve_all_that_run():
    with pytest.raises(InputError, match="max_num_seqs, which is 17"):
        server(9, max_num_seqs=17)


def test_a_budget_of_a_token_for_every_sequence_serves_them_all():
    run = server(100, max_num_batched_tokens=2, max_num_seqs=2)
    add(run, (1, 3), (1, 3))
    assert [step(run), step(run), step(run)] == [(0, [(0, 1), (1, 1)]), (2, []), (2, [])]


def test_of_prompts_under_way_the_last_gives_way():
    """Six blocks are two for each; for its third the first prompt takes those of the third prompt, not the second's."""
    run = server(6, long_prefill_token_threshold=4, scheduler_reserve_full_isl=False)
    groups = add(run, (16, 3), (16, 3), (16, 3))
    assert [step(run), step(run)] == [(0, [(0, 4), (1, 4), (2, 4)])] * 2
    plan, _ = run.step()
    assert plan.preempted == groups[2:]
    assert [chunk.group for chunk in plan.chunks] == groups[:2]
