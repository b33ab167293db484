"""Orders of admission, preemption and return: plans small enough to be written down
beforehand.
"""

import pytest
from manual_driver import ITERATION_LEVEL, ManualDriver, paged, scheduler_of
from tiny import FastMillisecond

from testbed.core.request import Request
from testbed.core.sequence import SequenceStatus
from testbed.engine.simulation import simulate
from testbed.memory.contiguous.reservations import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.plan import windows_of
from testbed.sched.preemption import Recompute, RecomputeSingleSwapGroup, Swap
from testbed.sched.separate import SeparatePrefill


def driver(kind, rule=Recompute, policy=None, **limits):
    return ManualDriver(scheduler_of(kind, policy or paged(100), rule(), **limits))


def add(run, *requests, num_seqs=1):
    """Requests of these prompt and output lengths."""
    first = len(run.outputs.requests)
    return [
        run.add(Request(i, 0, *lengths, num_seqs=num_seqs))
        for i, lengths in enumerate(requests, first)
    ]


def step(run):
    """Sequences that decode, and tokens of each chunk."""
    plan, _ = run.step()
    return plan.decode_seqs, [chunk.new for chunk in plan.chunks]


@pytest.mark.parametrize(
    ("kind", "second", "third"),
    [
        (SeparatePrefill, (0, [6]), (2, [])),
        (MixedPrefill, (1, []), (1, [])),  # 6 tokens do not go with a decode: they wait for it
        (ChunkedPrefill, (1, [5]), (1, [1])),
    ],
)
def test_decodes_use_the_token_budget_or_wait_for_prefill(kind, second, third):
    run = driver(kind, max_num_batched_tokens=6)
    add(run, (6, 9))
    assert step(run) == (0, [6])
    add(run, (6, 9))
    assert (step(run), step(run)) == (second, third)


def test_decodes_that_wait_for_a_prompt_read_no_window():
    run = driver(SeparatePrefill)
    add(run, (6, 9))
    step(run)
    read = [reads.tokens for reads in windows_of(run.plan(), run.state.batch, (4, 100))]
    add(run, (6, 9))
    assert read == [4, 7]
    waiting = run.plan()
    assert waiting.decode_seqs == 0
    assert [reads.tokens for reads in windows_of(waiting, run.state.batch, (4, 100))] == [0, 0]


def test_mixed_prefill_runs_large_prompts_before_decodes():
    run = driver(MixedPrefill, max_num_batched_tokens=6)
    add(run, (6, 9))
    step(run)
    add(run, (5, 9), (7, 9))
    assert [step(run), step(run), step(run)] == [(1, [5]), (0, [7]), (3, [])]


def test_last_prompt_token_is_prefilled_after_a_full_hit():
    policy = paged()
    policy.register_prefix(8)
    run = driver(SeparatePrefill, policy=policy)
    group = run.add(Request(0, arrival_ps=0, prompt_len=8, output_len=3, registered_prefix=8))
    plan, outcome = run.step()
    assert [(chunk.new, chunk.num_stored, chunk.last) for chunk in plan.chunks] == [(1, 7, True)]
    assert outcome.first_tokens == [group]


@pytest.mark.parametrize("kind", ITERATION_LEVEL)
def test_refused_head_blocks_the_queue(kind):
    run = driver(kind, policy=paged(8))
    groups = add(run, (16, 3), (24, 3), (4, 3))
    step(run)
    assert list(run.state.waiting) == groups[1:]
    while groups[0].status is not SequenceStatus.FINISHED:
        step(run)
    step(run)
    assert list(run.state.running.values()) == groups[1:]


@pytest.mark.parametrize("kind", ITERATION_LEVEL)
def test_last_admitted_is_preempted_to_the_queue_head(kind):
    run = driver(kind, policy=paged(6, host_blocks=100))
    groups = add(run, (8, 12), (8, 12), (8, 12))  # three times two blocks
    step(run)
    (newcomer,) = add(run, (4, 2))
    plan, _ = run.step()
    assert (plan.preempted, plan.decode_seqs) == ([groups[2]], 2)
    assert list(run.state.waiting) == [groups[2], newcomer]
    assert not plan.chunks  # no request is admitted by a plan that took slots


def test_earliest_preempted_swaps_in_before_new_requests():
    """Six blocks for three times two: the third is preempted at once, the second at the next
    block.
    """
    run = driver(SeparatePrefill, Swap, policy=paged(6, host_blocks=100))
    one, two, three = add(run, (8, 9), (8, 9), (8, 9))
    step(run)
    (newcomer,) = add(run, (4, 2))
    events = []
    for i in range(14):
        plan, _ = run.step()
        run.policy.check()
        events += [(i, "out", group) for group in plan.preempted] + [
            (i, "back", group) for group in plan.swapped_in
        ]
        events += [(i, "in", chunk.group) for chunk in plan.chunks]
    assert events == [
        (0, "out", three),
        (4, "out", two),
        (8, "back", two),
        (12, "back", three),
        (13, "in", newcomer),
    ]
    assert one.num_swaps == 0


def test_no_swap_in_during_an_iteration_that_preempts():
    """Two samples are on the host when a long request has to be computed again: it leaves more
    slots than they need.
    """
    run = driver(SeparatePrefill, RecomputeSingleSwapGroup, policy=paged(9, host_blocks=100))
    _, long = add(run, (4, 30), (16, 30))
    (pair,) = add(run, (4, 30), num_seqs=2)
    plans = [run.step()[0] for _ in range(11)]
    assert plans[1].preempted == [pair]
    assert (plans[9].preempted, plans[9].swapped_in) == ([long], [])
    assert plans[10].swapped_in == [pair]


@pytest.mark.parametrize("kind", [Paged, ContiguousMax])
@pytest.mark.parametrize(
    ("num_slots", "max_len", "reason"),
    [
        (512, 64, "65 tokens are more than the longest sequence of 64"),
        (64, 128, "1 x 65 tokens do not fit the empty pool"),
    ],
)
def test_request_above_the_length_limit_is_rejected(kind, num_slots, max_len, reason):
    policy = kind(PoolSpec(num_slots, 64), block_size=4)
    requests = [
        Request(0, arrival_ps=0, prompt_len=60, output_len=4),
        Request(1, arrival_ps=0, prompt_len=60, output_len=5),
    ]
    recorder = simulate(
        requests, scheduler_of(SeparatePrefill, policy, Recompute()), FastMillisecond(), max_len
    )
    assert (recorder.totals.finished, recorder.totals.generated) == (1, 4)
    assert recorder.rejections == {1: reason}


@pytest.mark.parametrize("kind", ITERATION_LEVEL)
def test_max_num_seqs_limits_running_sequences(kind):
    run = driver(kind, max_num_seqs=4)
    groups = [
        run.add(Request(i, arrival_ps=0, prompt_len=8, output_len=9, num_seqs=2)) for i in range(2)
    ] + [run.add(Request(2, arrival_ps=0, prompt_len=8, output_len=9))]
    for _ in range(4):
        run.step()
    assert list(run.state.running.values()) == groups[:2]
    assert list(run.state.waiting) == groups[2:]


@pytest.mark.parametrize("kind", ITERATION_LEVEL)
def test_group_above_max_num_seqs_runs_alone(kind):
    policy = Paged(PoolSpec(512, 64), block_size=4)
    requests = [
        Request(0, arrival_ps=0, prompt_len=8, output_len=5),
        Request(1, arrival_ps=0, prompt_len=8, output_len=5, num_seqs=3),
        Request(2, arrival_ps=0, prompt_len=8, output_len=5),
    ]
    scheduler = scheduler_of(kind, policy, Recompute(), max_num_seqs=2)
    recorder = simulate(requests, scheduler, FastMillisecond(), 64)
    spans = recorder.spans.columns()
    assert recorder.totals.finished == 3
    assert (spans["running"][spans["decode_seqs"] == 3] == 1).all()
    assert spans["decode_seqs"].max() == 3
