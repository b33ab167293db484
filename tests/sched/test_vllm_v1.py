"""The rules of vLLM V1's scheduler; at the end its plans before the last iteration's
results are in.
"""

import pytest
from manual_driver import ManualDriver, paged, sequence
from refusals import refuses
from releases import capping_windows
from tiny import MS, OneMillisecond

from testbed.core.layers import KvGroup
from testbed.core.request import Request
from testbed.core.sequence import SequenceStatus
from testbed.core.slots import Refusal
from testbed.engine.simulation import simulate
from testbed.memory.groups.grouped_output_caching import GroupedOutputCaching
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.sched.preemption import Recompute
from testbed.sched.vllm_v1 import AsyncVllmV1, VllmV1

LIMITS = {
    "max_num_batched_tokens": 16,
    "max_num_seqs": 8,
    "long_prefill_token_threshold": 0,
    "scheduler_reserve_full_isl": True,
}


def driver(num_blocks, **limits):
    return ManualDriver(
        VllmV1(paged(num_blocks, max_len=1000), Recompute(), **{**LIMITS, **limits})
    )


def driver_with_windows(num_pages, scheduler_reserve_full_isl=True, **options):
    """Pages of 4 tokens in two layers: a block takes one of full attention and three of windows of
    10. Chunks have 8 tokens.
    """
    groups = (KvGroup("full", 2, 64), KvGroup("window", 6, 64, window=10))
    pool = PoolSpec(num_pages, 1000, layer_bytes=64, num_layers=8, groups=groups)
    policy = GroupedOutputCaching(pool, 4, **options)
    limits = {
        **LIMITS,
        "long_prefill_token_threshold": 8,
        "scheduler_reserve_full_isl": scheduler_reserve_full_isl,
    }
    return ManualDriver(VllmV1(policy, Recompute(), **limits))


def add(run, *requests, ids=None):
    """Requests of these prompt and output lengths."""
    ids = None if ids is None else tuple(ids)
    return [
        run.add(Request(i, 0, *lengths, prompt_ids=ids))
        for i, lengths in enumerate(requests, len(run.outputs.requests))
    ]


def step(run):
    """The steps of decoding sequences, and (request, tokens) of each chunk; nothing else is in the
    plan.
    """
    plan, _ = run.step()
    run.policy.check()
    return plan.decode_seqs, [(chunk.group.request_id, chunk.new) for chunk in plan.chunks]


def test_decodes_run_first_and_prefills_share_the_budget():
    run = driver(100)
    add(run, (6, 9), (5, 9), (12, 9))
    assert step(run) == (0, [(0, 6), (1, 5), (2, 5)])
    add(run, (20, 9))
    assert step(run) == (2, [(2, 7), (3, 7)])
    assert step(run) == (3, [(3, 13)])
    assert step(run) == (4, [])


def test_long_prefill_threshold_runs_several_prefills_in_order():
    run = driver(100, long_prefill_token_threshold=6)
    add(run, (13, 9), (8, 9), (20, 9))
    assert step(run) == (0, [(0, 6), (1, 6), (2, 4)])
    assert step(run) == (0, [(0, 6), (1, 2), (2, 6)])
    assert step(run) == (1, [(0, 1), (2, 6)])


def test_preempting_step_preempts_the_last_and_admits_no_request():
    run = driver(6)
    first, second = add(run, (8, 9), (8, 9))
    assert step(run) == (0, [(0, 8), (1, 8)])
    assert step(run) == (2, [])  # both take their third block, so the pool is full
    assert [step(run) for _ in range(3)] == [(2, [])] * 3
    late = add(run, (1, 1))
    plan, _ = run.step()
    assert (plan.preempted, plan.decode_seqs, plan.chunks) == ([second], 1, [])
    assert [*run.state.waiting] == [second, *late]
    assert first.status is SequenceStatus.RUNNING


@pytest.mark.parametrize("num_blocks", [63, 17])
def test_a_prompt_that_waits_for_memory_counts_once_as_in_033(num_blocks):
    """vLLM 0.19's own counts had 21 requests, 1,280 of 2,688 tokens, with the small pool."""
    policy = OutputCaching(PoolSpec(num_blocks * 16, 512), 16)
    run = ManualDriver(VllmV1(policy, Recompute(), **{**LIMITS, "max_num_batched_tokens": 512}))
    for i in range(4):
        ids = (*range(64), *[100 + i] * 64)
        run.add(Request(i, 0, 128, 100, prompt_ids=ids))
    while run.state.waiting or run.state.running:
        run.step()
    counts = policy.counters()
    assert (counts["prompts"], counts["hit_tokens"], counts["tokens"]) == (4, 192, 512)


def test_preempting_step_continues_running_prefills():
    run = driver(8, long_prefill_token_threshold=4, scheduler_reserve_full_isl=False)
    _, second, third = add(run, (4, 20), (13, 9), (24, 9))
    assert step(run) == (0, [(0, 4), (1, 4), (2, 4)])
    assert step(run) == (1, [(1, 4), (2, 4)])
    assert step(run) == (1, [(1, 4), (2, 4)])  # 2 + 3 + 3 blocks: the pool is full
    plan, _ = run.step()
    assert [(chunk.group, chunk.new) for chunk in plan.chunks] == [(second, 1)]
    assert (plan.preempted, plan.decode_seqs) == ([third], 1)


def test_windows_give_back_in_order_of_admission_though_decodes_come_first_in_a_plan():
    """A prompt in its third chunk and a decode admitted behind it leave the first block of their
    windows. The next sequence evicts those of the prompt: a block takes one page of full attention,
    three of windows.
    """
    run = driver_with_windows(41)
    prompts = [tuple(range(40)), tuple(range(100, 113))]
    for ids in prompts:
        add(run, (len(ids), 9), ids=ids)
    assert step(run) == (0, [(0, 8), (1, 8)])
    assert step(run) == (0, [(0, 8), (1, 5)])
    assert step(run) == (1, [(0, 8)])
    assert not isinstance(run.policy.admit([sequence(2, 4)], 4), Refusal)
    begins = [sequence(3, 5, prompt_ids=ids[:5]) for ids in prompts]
    assert [run.policy.lookup(begin).num_cached(5) for begin in begins] == [0, 4]


@pytest.mark.parametrize(
    ("options", "num_pages"),
    [
        ({}, 15 + 3 * 15),
        (capping_windows(8), 15 + 3 * (5 + 1)),
        (capping_windows(8, frees_after_run=True), 15 + 3 * (7 + 1)),
    ],
)
def test_a_prompt_is_admitted_if_what_its_windows_have_at_once_would_fit(options, num_pages):
    """15 blocks of 4 tokens, of which a window of 10 needs those of 9 tokens and of one chunk of 8,
    or two if the one before may still run; and one more.
    """
    smaller, run = (driver_with_windows(number, **options) for number in (num_pages - 1, num_pages))
    assert smaller.policy.max_seq_len(60, 1) < 60 <= run.policy.max_seq_len(60, 1)
    add(run, (60, 1))
    assert [step(run) for _ in range(8)] == [(0, [(0, 8)])] * 7 + [(0, [(0, 4)])]


def test_a_first_chunk_is_admitted_when_its_hit_was_evicted():
    """A hit of 8 blocks takes 17 pages (a window of 10 reads three blocks), and two blocks behind
    it 8: two more than are left. When a decode takes four of the 17, two blocks without a hit fit.
    """
    run = driver_with_windows(35, scheduler_reserve_full_isl=False, **capping_windows(8))
    add(run, (32, 1), ids=range(32))
    assert [step(run) for _ in range(4)] == [(0, [(0, 8)])] * 4
    add(run, (9, 20))
    assert [step(run) for _ in range(2)] == [(0, [(1, 8)]), (0, [(1, 1)])]
    add(run, (40, 1), ids=range(40))
    assert [step(run) for _ in range(3)] == [(1, [])] * 3
    assert step(run) == (1, [(2, 8)])


@pytest.mark.parametrize(("whole", "chunks"), [(True, [(0, 10)]), (False, [(0, 10), (1, 6)])])
def test_admission_needs_blocks_for_whole_prompt_or_first_chunk(whole, chunks):
    run = driver(6, scheduler_reserve_full_isl=whole)
    add(run, (10, 20), (14, 9))
    assert step(run) == (0, chunks)


def test_token_budget_below_max_num_seqs_is_refused():
    refuses(r"scheduler\.max_num_batched_tokens=16: ", driver, 9, max_num_seqs=17)


def async_vllm(num_blocks=100, kind=Paged, *, ignore_eos=True, **limits):
    limits = {**LIMITS, "max_num_batched_tokens": 64, **limits}
    return AsyncVllmV1(
        paged(num_blocks, kind, max_len=1000), Recompute(), **limits, ignore_eos=ignore_eos
    )


def times(built, *requests):
    """First token and finish of each request, in ms as their arrivals are."""
    rows = [
        Request(i, round(arrival * MS), *lengths) for i, (arrival, *lengths) in enumerate(requests)
    ]
    columns = simulate(rows, built, OneMillisecond(), 1000).requests.columns()
    order = columns["request_id"].argsort()
    firsts, ends = (columns[name][order] / MS for name in ("first_token_ps", "finish_ps"))
    return list(zip(firsts.tolist(), ends.tolist(), strict=True))


def test_async_arrival_during_an_iteration_waits_one_more():
    requests = [(0, 4, 10), (2.5, 4, 2)]
    sync = VllmV1(paged(100, max_len=1000), Recompute(), **LIMITS)
    assert times(sync, *requests) == [(1, 10), (4, 5)]
    assert times(async_vllm(), *requests) == [(1, 10), (5, 6)]


@pytest.mark.parametrize(
    ("arrival_ms", "ignore_eos", "expected"),
    [
        (5.5, True, [(1, 2), (6.5, 7.5)]),  # after a pause it begins at once
        (
            1.5,
            True,
            [(1, 2), (3, 4)],
        ),  # when the last results are in, if nothing could be planned ahead
        (
            1.5,
            False,
            [(1, 2), (4, 5)],
        ),  # an output that ends unforeseen takes one more step, which it waits for
    ],
)
def test_async_arrival_starts_when_no_step_is_planned(arrival_ms, ignore_eos, expected):
    assert times(async_vllm(ignore_eos=ignore_eos), (0, 4, 2), (arrival_ms, 4, 2)) == expected


def test_async_output_that_fills_the_model_s_length_takes_no_more_step():
    requests = [(0, 4, 2), (1.5, 2, 1)]  # as if its end were foreseen
    assert times(async_vllm(ignore_eos=False, max_len=6), *requests) == [(1, 2), (3, 3)]
    assert times(async_vllm(ignore_eos=False, max_len=7), *requests) == [(1, 2), (4, 4)]


@pytest.mark.parametrize(("ignore_eos", "steps"), [(True, [2, 1, 1]), (False, [2, 2, 1])])
def test_async_finish_frees_memory_one_step_later(ignore_eos, steps):
    run = ManualDriver(async_vllm(ignore_eos=ignore_eos, max_num_seqs=2))
    first, _ = add(run, (4, 2), (4, 9))
    run.step()
    add(run, (4, 9))
    plan, outcome = run.step()
    taken = [plan.decode_seqs]
    assert outcome.finished == [first]
    assert run.policy.usage().held == 8  # two blocks of the second, by now
    plan, _ = run.step()
    taken.append(plan.decode_seqs)
    assert not plan.chunks  # the place was not free when this was planned
    plan, _ = run.step()
    taken.append(plan.decode_seqs)
    assert [chunk.group.request_id for chunk in plan.chunks] == [2]
    assert taken == steps
    run.policy.check()


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_async_preemption_ignores_memory_about_to_be_freed(ignore_eos):
    run = ManualDriver(async_vllm(4, ignore_eos=ignore_eos))
    *_, last = add(run, (3, 2), (3, 9), (5, 9))
    run.step()
    _, outcome = run.step()
    assert [group.request_id for group in outcome.finished] == [0]
    plan, _ = run.step()  # the second request needed a block; that of the first was still held
    assert (plan.preempted, plan.decode_seqs) == ([last], 1 + (not ignore_eos))
    run.policy.check()


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_async_finished_last_group_frees_memory_and_admits_nothing(ignore_eos):
    """It is preempted before it is known that it has ended, which then counts as its end."""
    run = ManualDriver(async_vllm(3, ignore_eos=ignore_eos))
    _, ended = add(run, (3, 9), (5, 2))
    run.step()
    add(run, (2, 1))
    _, outcome = run.step()
    assert [group.request_id for group in outcome.finished] == [1]
    assert (ended.status, ended.num_recomputes) == (SequenceStatus.FINISHED, 0)
    plan, _ = run.step()
    assert (plan.preempted, plan.decode_seqs, plan.chunks) == ([ended], 1, [])
    assert run.policy.usage().free == 0  # the third request was admitted with the next plan
    plan, _ = run.step()
    assert [chunk.group.request_id for chunk in plan.chunks] == [2]
    run.policy.check()


@pytest.mark.parametrize("kind", [Paged, OutputCaching])
def test_async_last_group_preempts_itself_while_a_finished_one_holds_slots(
    kind,
):
    """Its block is full, but the token that it ends with is not known yet: no cache may have it."""
    run = ManualDriver(async_vllm(3, kind))
    _, last = add(run, (5, 2), (3, 9))
    run.step()
    assert not run.ahead.chunks
    run.step()
    assert not run.ahead  # as in vLLM 0.19, which plans an iteration without work here
    assert run.ahead.preempted == [last]
    plan, _ = run.step()  # and the next one when the results are in
    assert [(chunk.group, chunk.new) for chunk in plan.chunks] == [(last, 5)]
    assert plan.decode_seqs == 0
    run.policy.check()


def test_async_preemption_keeps_all_blocks_that_are_known_to_be_stored():
    """The last token is not known of 9 stored ones, nor of 10 and a decode; of a recomputed prefix
    it is.
    """
    run = ManualDriver(async_vllm(kind=OutputCaching))
    (group,) = add(run, (3, 20))
    computed = []
    for num_generated in (7, 9):
        while group.num_generated < num_generated - 1:
            run.step()
        preempt_during(run, run.ahead)
        recompute, _ = run.step() if num_generated == 7 else (run.plan(), None)
        computed.append(chunks_of(recompute))
    preempt_during(run, recompute)
    computed.append(chunks_of(run.plan()))
    assert computed == [[(0, 10 - 8)], [(0, 12 - 8)], [(0, 13 - 12)]]


def preempt_during(run, plan):
    """The plan made ahead during this one's iteration preempts the only group."""
    run.ahead = None
    run.anticipate(plan)
    run.preempt()
    run.conclude(plan)


def chunks_of(plan):
    """(request, tokens) of each chunk."""
    return [(chunk.group.request_id, chunk.new) for chunk in plan.chunks]
