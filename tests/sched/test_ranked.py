"""Order of service by rank, and plans that depend on time."""

from functools import partial

import hypothesis.strategies as st
import pytest
import strategies
from depth import examples
from hypothesis import HealthCheck, given, settings
from manual_driver import scheduler_of
from refusals import refuses
from same_runs import check_both_ways
from strategies import MAX_LEN, policies, workloads
from tiny import MS, FastMillisecond, analytic

from testbed.core.errors import PlugInError
from testbed.core.request import PS, Request
from testbed.engine.simulation import simulate
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.run.parts import Part
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.orders import Aging, ByPriority, SessionOrder, TimeToLive
from testbed.sched.preemption import Recompute, RecomputeSingleSwapGroup, Swap
from testbed.sched.vllm_v1 import VllmV1

COST = analytic(overhead_s=1e-3, overhead_per_request_s=1e-4, copy_s=1e-5)
many = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))


class Watched(ChunkedPrefill):
    """Asserts, of every plan, that a group which begins or comes back in it ranks before all that
    are left behind.
    """

    def plan(self):
        state = self.state
        before = {group.request_id for group in state.running.values()}
        plan = super().plan()
        started = [group for key, group in state.running.items() if key not in before]
        left = [*state.waiting, *state.swapped]
        assert all(group.rank < other.rank for group in started for other in left)
        kept = [group for group in state.running.values() if group not in started]
        assert all(group.rank < lost.rank for group in kept for lost in plan.preempted)
        return plan


class WatchedLives(Watched):
    """The last request of a fifth of the sessions ends one."""

    def finish(self, group):
        super().finish(group)
        if not group.request_id % 5:
            self.close_session(group.request.session)


@st.composite
def ranked_schedulers(draw):
    preemption = draw(st.sampled_from([Recompute, Swap, Swap, RecomputeSingleSwapGroup]))
    limits = draw(strategies.LIMITS)
    patience_s = draw(st.sampled_from([0.0, 1e-3, 0.02, 1e3]))
    kind, order = draw(
        st.sampled_from(
            [
                (Watched, SessionOrder),
                (Watched, ByPriority),
                (Watched, partial(Aging, patience_s)),
                (WatchedLives, partial(TimeToLive, max(patience_s, 1e-6))),
            ]
        )
    )
    return partial(strategies.in_order, kind, preemption, limits, order)


@many
@given(
    policies([Paged, Paged, PrefixCaching]), ranked_schedulers(), workloads(), st.integers(0, 10**6)
)
def test_order_is_kept_and_fast_equals_slow(make_policy, make_scheduler, requests, seed):
    requests = [
        r._replace(priority=(seed >> r.request_id % 9) % 3, session=r.request_id * seed % 5)
        for r in requests
    ]
    check_both_ways(requests, lambda: make_scheduler(make_policy()), COST, MAX_LEN)


@many
@given(
    st.sampled_from([Recompute, Swap]),
    st.sampled_from([64, 100, 1000]),
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 60), st.integers(1, 60)),
        min_size=2,
        max_size=60,
    ),
    st.integers(0, 20),
)
def test_no_request_is_starved(preemption, host_slots, shapes, gap_ms):
    """Priority classes with swaps, beyond what the pool can serve: a request that came more than
    the patience for each class of difference after another has no token before it.
    """
    patience_s = 0.05
    requests = [
        Request(i, i * gap_ms * MS, prompt, output, priority=priority)
        for i, (priority, prompt, output) in enumerate(shapes)
    ]
    policy = Paged(PoolSpec(2 * MAX_LEN, MAX_LEN, host(host_slots)), block_size=8, watermark=0.0)
    scheduler = scheduler_of(
        ChunkedPrefill, policy, preemption(), order=Aging(patience_s), max_num_batched_tokens=64
    )
    columns = simulate(requests, scheduler, FastMillisecond(), MAX_LEN).requests.columns()
    assert len(columns["request_id"]) == len(requests)
    first = dict(
        zip(columns["request_id"].tolist(), columns["first_token_ps"].tolist(), strict=True)
    )
    for request in requests:
        overtaken = request.arrival_ps + request.priority * patience_s * PS
        later = [
            two for two in requests if two.arrival_ps + two.priority * patience_s * PS > overtaken
        ]
        assert all(
            first[request.request_id] <= first[two.request_id]
            for two in later
            if two.arrival_ps > request.arrival_ps
        )


def served(order, shapes, rule=Recompute, num_slots=64, kind=ChunkedPrefill, **options):
    """Ends in ms of requests (arrival in ms, priority, session, prompt, output) on a pool of 64
    slots; the recorder.
    """
    requests = [
        Request(i, at * MS, prompt, output, priority=priority, session=session)
        for i, (at, priority, session, prompt, output) in enumerate(shapes)
    ]
    policy = Paged(PoolSpec(num_slots, 64, host(64)), block_size=16, watermark=0.0)
    scheduler = scheduler_of(kind, policy, rule(), order=order, **options)
    recorder = simulate(requests, scheduler, FastMillisecond(), 64)
    columns = recorder.requests.columns()
    return dict(
        zip(columns["request_id"].tolist(), (columns["finish_ps"] // MS).tolist(), strict=True)
    ), recorder


def test_the_urgent_class_is_served_first_until_the_other_has_waited_long_enough():
    shapes = [(0, 0, None, 48, 10), (1, 1, None, 48, 4), (2, 0, None, 48, 4), (9, 0, None, 48, 4)]
    ends, _ = served(Aging(1.0), shapes)
    assert ends == {0: 10, 2: 14, 3: 18, 1: 22}
    ends, _ = served(Aging(0.005), shapes)  # the second counts as if it had come at 6 ms
    assert ends == {0: 10, 2: 14, 1: 18, 3: 22}


def test_the_least_urgent_is_swapped_out_and_comes_back_behind_the_more_urgent():
    shapes = [(0, 1, None, 24, 30), (1, 0, None, 20, 14), (2, 0, None, 16, 4)]
    ends, recorder = served(Aging(1.0), shapes, Swap)
    assert recorder.totals.swaps == 1
    assert ends[1] < ends[0]
    assert ends[2] < ends[0]


def test_sessions_are_served_in_the_order_in_which_they_began():
    shapes = [(0, 0, 7, 48, 10), (1, 0, 8, 48, 4), (2, 0, 7, 48, 4), (3, 0, None, 48, 4)]
    ends, _ = served(SessionOrder(), shapes)
    assert ends == {0: 10, 2: 14, 1: 18, 3: 22}
    assert served(None, shapes)[0] == {0: 10, 1: 14, 2: 18, 3: 22}


@pytest.mark.parametrize(("time_to_live_s", "ends"), [(1e-6, 9), (5e-3, 12), (20e-3, 22)])
def test_an_answered_request_keeps_its_slots_for_a_time_while_another_runs(time_to_live_s, ends):
    """The third request waits for slots of the first, or at last for the end of the second."""
    shapes = [(0, 0, 7, 20, 3), (4, 0, 8, 16, 14), (5, 0, 9, 16, 4)]
    assert served(TimeToLive(time_to_live_s), shapes)[0] == {0: 3, 1: 18, 2: ends}


def test_retained_slots_are_released_for_running_idle_and_continuing_requests():
    assert served(TimeToLive(1.0), [(0, 0, 7, 20, 3), (4, 0, 8, 40, 20)])[0] == {
        0: 3,
        1: 24,
    }
    scheduler = scheduler_of(
        ChunkedPrefill, PrefixCaching(PoolSpec(80, 64)), Recompute(), order=TimeToLive(1.0)
    )
    turns = [
        Request(
            i,
            arrival_ps=10 * i * MS,
            prompt_len=33,
            output_len=2,
            session=i // 2,
            prompt_ids=tuple(range(33)),
        )
        for i in range(3)
    ]
    simulate(turns, scheduler, FastMillisecond(), 64)
    assert [group.request_id for group in scheduler.state.leased] == [1, 2]
    scheduler.close_session(0)
    assert [group.request_id for group in scheduler.state.leased] == [2]
    assert scheduler.policy.usage().held == 48


def test_retained_slots_are_released_before_vllms_scheduler_preempts():
    limits = {"long_prefill_token_threshold": 0, "scheduler_reserve_full_isl": True}
    shapes = [(0, 0, 7, 20, 3), (4, 0, 8, 30, 30)]  # it needs a third block when it decodes
    ends, recorder = served(TimeToLive(1.0), shapes, kind=VllmV1, **limits)
    assert ends == {0: 3, 1: 34}
    assert recorder.totals.recomputes == 0


@pytest.mark.parametrize("fast_forward", [True, False])
def test_the_last_prompt_is_served_though_it_must_wait_for_what_is_retained(fast_forward):
    """The run ended with the request in prefill: no arrival was left, and nothing waited."""
    policy = Paged(PoolSpec(128, MAX_LEN), block_size=8, watermark=0.0)
    scheduler = scheduler_of(
        ChunkedPrefill, policy, Recompute(), max_num_batched_tokens=40, order=TimeToLive(5.0)
    )
    requests = [Request(i, i * PS, 60 + 40 * i, 4, session=i) for i in range(2)]
    recorder = simulate(requests, scheduler, FastMillisecond(), MAX_LEN, fast_forward=fast_forward)
    assert (recorder.totals.arrived, recorder.totals.finished) == (2, 2)
    assert not scheduler.state.running


def test_a_lone_prompt_goes_on_when_the_decode_behind_it_was_preempted():
    shapes = [(0, 0, 7, 2, 1), (1, 0, 8, 4, 40), (5, 0, 7, 60, 2)]
    ends, recorder = served(SessionOrder(), shapes, max_num_batched_tokens=4)
    assert recorder.totals.recomputes == 1
    assert ends[2] < ends[1]


@pytest.mark.parametrize(("kind", "name"), [(Aging, "patience_s"), (TimeToLive, "time_to_live_s")])
def test_patience_and_time_to_live_are_times(kind, name):
    refuses(rf"{name}=-1\.0: ", Part(kind, {name: -1.0}).make, "scheduler.order")


class OpensLate(ChunkedPrefill):
    """Admits nothing before a time, and notes when it plans."""

    opens_ps = 7 * MS

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.seen_ms = []

    def plan(self):
        self.seen_ms.append(self.now_ps / MS)
        if self.now_ps >= self.opens_ps:
            return super().plan()
        plan = self.new_plan()
        self.decode(plan)
        plan.guaranteed_steps = self.policy.guaranteed_steps(self.state.batch)
        plan.wake_ps = self.opens_ps
        return plan


@pytest.mark.parametrize("fast_forward", [True, False])
def test_scheduler_plans_again_at_its_wake_time(fast_forward):
    scheduler = scheduler_of(OpensLate, Paged(PoolSpec(64, 64), block_size=16), Recompute())
    recorder = simulate(
        [Request(0, arrival_ps=2 * MS, prompt_len=10, output_len=5)],
        scheduler,
        FastMillisecond(),
        64,
        fast_forward=fast_forward,
    )
    assert recorder.requests.columns()["first_token_ps"].tolist() == [8 * MS]
    assert scheduler.seen_ms[:3] == [0, 2, 7]


class Opens(OpensLate):
    """Admits at once, then stops at a time in the middle of a span."""

    def plan(self):
        self.seen_ms.append(self.now_ps / MS)
        plan = ChunkedPrefill.plan(self)
        if self.now_ps < self.opens_ps + MS // 2:
            plan.wake_ps = self.opens_ps + MS // 2
        return plan


def test_wake_ps_ends_a_span_at_the_next_boundary():
    scheduler = scheduler_of(Opens, Paged(PoolSpec(64, 64), block_size=16), Recompute())
    simulate(
        [Request(0, arrival_ps=0, prompt_len=10, output_len=30)], scheduler, FastMillisecond(), 64
    )
    assert scheduler.seen_ms == [0, 1, 8, 30]


def test_wake_time_in_the_past_is_refused():
    class Past(OpensLate):
        opens_ps = PS

        def plan(self):
            plan = super().plan()
            plan.wake_ps = self.now_ps
            return plan

    scheduler = scheduler_of(Past, Paged(PoolSpec(64, 64)), Recompute())
    with pytest.raises(PlugInError, match="asks at 0 ps to plan again at 0 ps, which is not later"):
        simulate(
            [Request(0, arrival_ps=5, prompt_len=10, output_len=5)],
            scheduler,
            FastMillisecond(),
            64,
        )
