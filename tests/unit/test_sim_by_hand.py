"""What a run records and prices, on runs small enough to be followed by hand; every iteration takes a millisecond."""

import pytest
from by_hand import scheduler_of
from ticks import MS, FastMillisecond, OneMillisecond

from testbed.core.request import Request
from testbed.memory.contiguous.contiguous import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute, Swap
from testbed.sched.separate import SeparatePrefill
from testbed.sched.static_batch import StaticBatch
from testbed.sim.simulation import simulate

COSTS = [OneMillisecond(), FastMillisecond()]


class Noted(OneMillisecond):
    """Keeps what it was asked to price."""

    def __init__(self):
        self.works = []

    def iteration(self, work):
        self.works.append(work)
        return super().iteration(work)


def run(requests, cost, policy=None, rule=Recompute, kind=SeparatePrefill, **options):
    policy = policy or Paged(PoolSpec(640, 512), block_size=4, watermark=0)
    return simulate(requests, scheduler_of(kind, policy, rule()), cost, 512, **options)


def tight(num_slots=40):
    """Two requests of 8 + 20 tokens do not fit: the second is preempted, and has to wait for the first."""
    return Paged(PoolSpec(num_slots, 512, host(400)), block_size=4, watermark=0)


PAIR = [Request(i, 0, 8, 20) for i in range(2)]


@pytest.mark.parametrize("cost", COSTS)
def test_a_run_ends_at_the_first_iteration_that_ends_at_or_after_its_stop(cost):
    for stop, end in ((3 * MS, 3 * MS), (3 * MS - 1, 3 * MS), (3 * MS + 1, 4 * MS)):
        recorder = run([Request(0, 0, 4, 10)], cost, stop_ps=stop)
        assert (recorder.end_ps, recorder.totals.iterations) == (end, end // MS)


@pytest.mark.parametrize("cost", COSTS)
def test_marks_hold_what_was_before_them_each_at_its_own_time(cost):
    recorder = run([Request(0, 0, 4, 10)], cost, marks_ps=[7 * MS, 2 * MS + 5])
    found = {asked: (mark.time_ps, mark.totals.iterations) for asked, mark in recorder.marks.items()}
    assert found == {2 * MS + 5: (3 * MS, 3), 7 * MS: (7 * MS, 7)}
    live = [mark.totals.per_iteration.live for mark in recorder.marks.values()]
    assert live == [4 + 5 + 6, 4 + 5 + 6 + 7 + 8 + 9 + 10]


@pytest.mark.parametrize("cost", COSTS)
def test_the_first_token_is_first_once_also_after_recompute(cost):
    recorder = run(PAIR, cost, tight())
    log = recorder.requests.columns()
    assert log["first_token_ps"].tolist() == [MS, MS]
    assert (recorder.totals.swaps, recorder.totals.recomputes) == (0, 1)
    assert log["num_recomputes"].tolist() == [0, 1]


@pytest.mark.parametrize("cost", COSTS)
def test_who_waits_and_who_is_swapped_out_is_counted_apart(cost):
    recorder = run([*PAIR, *(Request(i, 12 * MS, 30, 2) for i in (2, 3))], cost, tight(), Swap)
    spans = recorder.spans.columns()
    assert (spans["waiting"].max(), spans["swapped"].max(), spans["preempted"].max()) == (2, 1, 1)
    assert (recorder.totals.swaps, recorder.totals.recomputes) == (1, 0)


@pytest.mark.parametrize("cost", COSTS)
def test_every_sample_generates_and_every_copy_counts(cost):
    policy = ContiguousMax(PoolSpec(4 * 512, 512))
    recorder = run([Request(0, 0, 10, 5, num_seqs=3)], cost, policy)
    assert (recorder.totals.generated, recorder.totals.copies) == (15, 2)


def test_an_output_of_one_token_ends_with_its_prompt():
    recorder = run([Request(0, 0, 10, 1), Request(1, 0, 10, 2)], FastMillisecond())
    assert recorder.requests.columns()["finish_ps"].tolist() == [MS, 2 * MS]


def test_rejected_requests_have_no_times():
    recorder = run([Request(0, 0, 600, 1), Request(1, 0, 4, 2)], FastMillisecond())
    log = recorder.requests.columns()
    assert dict(zip(log["request_id"].tolist(), log["finish_ps"].tolist(), strict=True)) == {0: -1, 1: 2 * MS}


def test_samples_that_cannot_fit_together_are_turned_away():
    recorder = run([Request(0, 0, 4, 36, num_seqs=2), Request(1, 0, 4, 36)], FastMillisecond(), tight())
    assert recorder.rejections.keys() == {0}


def test_requests_are_priced_once_and_shared_contexts_as_often_as_they_are_read_again():
    cost = Noted()
    run([Request(0, 0, 8, 4, num_seqs=3), Request(1, 0, 8, 4)], cost)
    prompts, *decodes = cost.works
    assert prompts.prefill == ((8, 0), (8, 0))
    assert [work.num_requests for work in cost.works] == [2] * 4
    assert [(work.decode_seqs, work.decode_context, work.decode_longest) for work in decodes] == [
        (4, 36, 9), (4, 40, 10), (4, 44, 11),
    ]  # fmt: skip
    assert [work.decode_repeated for work in decodes] == [2 * 8] * 3


def test_copies_and_swaps_are_priced_by_length_and_number():
    cost = Noted()
    run([Request(0, 0, 10, 5, num_seqs=3)], cost, ContiguousMax(PoolSpec(4 * 512, 512)))
    assert [work.copies for work in cost.works if work.copies] == [((512, 2),)]
    cost = Noted()
    run(PAIR, cost, tight(), Swap)
    assert [sum(moved[-1] for moved in work.moves) for work in cost.works if work.moves] == [5, 5]


def test_padding_is_computed_and_read():
    cost, policy = Noted(), ContiguousMax(PoolSpec(4 * 64, 64))
    scheduler = StaticBatch(policy, Recompute(), max_batch_size=2, max_padded_len=64)
    simulate([Request(0, 0, 10, 2), Request(1, 0, 30, 4)], scheduler, cost, 64)
    assert [work.prefill for work in cost.works] == [((30, 0), (30, 0)), (), (), ()]
    assert [work.decode_context for work in cost.works[1:]] == [2 * 31, 2 * 32, 2 * 33]


def test_who_comes_back_steps_with_all_its_samples_beside_the_others():
    """The group of two gives way when blocks run out; both its samples step in the iteration that brings it back."""
    cost = Noted()
    requests = [Request(0, 0, 8, 10), Request(1, 0, 8, 14, num_seqs=2), Request(2, 0, 2, 14)]
    recorder = run(requests, cost, tight(), Swap, MixedPrefill)
    back = next(work for work in cost.works if any(moved.target == "device" for moved in work.moves))
    assert recorder.totals.swaps >= 1
    assert back.decode_seqs >= 2


@pytest.mark.parametrize("kind", [Paged, ContiguousMax])
def test_a_span_s_row_holds_means_and_its_sums_are_those_of_the_steps(kind):
    """Live slots of 8 tokens and then 9 to 12: 50 over five iterations, whether they are five rows or two."""
    for cost, num_rows in ((OneMillisecond(), 5), (FastMillisecond(), 2)):
        recorder = run([Request(0, 0, 8, 5)], cost, kind(PoolSpec(640, 64), block_size=4))
        spans = recorder.spans.columns()
        assert len(spans["live"]) == num_rows
        assert (spans["live"] * spans["iterations"]).sum() == recorder.totals.per_iteration.live == 50
        assert spans["live"].max() <= 12


@pytest.mark.parametrize("cost", COSTS)
def test_cached_blocks_are_counted_until_the_step_that_evicts_them(cost):
    """Ten blocks, four of them cached when the second request comes; its 34 tokens take one after another of them."""
    policy = PrefixCaching(PoolSpec(40, 64), block_size=4, watermark=0)
    requests = [Request(0, 0, 17, 1, prompt_ids=tuple(range(17))), Request(1, 5 * MS, 4, 30)]
    recorder = simulate(requests, scheduler_of(SeparatePrefill, policy, Recompute()), cost, 64)
    assert policy.counters()["evictions"] == 3  # the last token is never stored: nine blocks
    cached = 30 * 16 - 4 * (1 + 5 + 9)  # a block less in the last iteration, in the last five, in the last nine
    assert recorder.totals.per_iteration.cached == cached
    assert recorder.totals.over_time.cached == cached * MS
