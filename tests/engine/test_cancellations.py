"""Requests that are cancelled while a plan is in flight behind the present iteration."""

import numpy as np
import pytest
import simpy
from manual_driver import paged
from same_runs import assert_same
from tiny import analytic

from testbed.core.request import PS, Request
from testbed.engine.engine_parts import EngineParts
from testbed.engine.mode import Mode
from testbed.engine.recorder import Recorder, request_columns
from testbed.engine.sim_clock import SimClock
from testbed.engine.simulation import simulated_engine
from testbed.sched.preemption import Recompute
from testbed.sched.vllm_v1 import AsyncVllmV1

MAX_LEN = 64
# Ten chunks of the token budget
LONG_PROMPT = Request(0, arrival_ps=0, prompt_len=40, output_len=5)


def scheduler():
    """Plans an iteration ahead; 4 tokens of one request in each."""
    return AsyncVllmV1(
        paged(16, max_len=MAX_LEN),
        Recompute(),
        max_num_batched_tokens=4,
        max_num_seqs=1,
        long_prefill_token_threshold=0,
        scheduler_reserve_full_isl=True,
        ignore_eos=True,
    )


def run(requests, cancel_ps, *, fast_forward):
    """A run in which request 0 is cancelled at cancel_ps; its recorder."""
    clock, recorder = SimClock(simpy.Environment(0)), Recorder()
    engine = simulated_engine(
        clock, EngineParts(scheduler(), analytic(), MAX_LEN), recorder, Mode(fast_forward)
    )

    def outside():
        for request in requests:
            engine.submit(request)
        yield clock.env.timeout(cancel_ps)
        assert engine.cancel(0)
        engine.close()

    clock.env.process(outside())
    clock.env.run(until=clock.start(engine.serve()))
    return recorder


def times_of(recorder):
    """The start, duration and number of iterations of each span."""
    columns = recorder.spans.columns()
    names = ("start_ps", "duration_ps", "iterations")
    return list(zip(*(columns[name].tolist() for name in names), strict=True))


@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_plan_of_cancelled_prompts_alone_takes_no_time(fast_forward):
    """Its first chunk is under way and its second planned; the third is planned behind the second,
    and left out.
    """
    recorder = run([LONG_PROMPT], 1, fast_forward=fast_forward)
    [(_, first_ps, _), (second_start_ps, second_ps, _)] = times_of(recorder)
    assert first_ps > 1
    assert second_start_ps == first_ps
    assert recorder.end_ps == first_ps + second_ps
    assert recorder.totals.cancelled == 1


@pytest.mark.parametrize("fast_forward", [True, False])
def test_the_next_request_begins_where_the_plan_in_flight_is_dropped(fast_forward):
    recorder = run(
        [LONG_PROMPT, Request(1, arrival_ps=0, prompt_len=4, output_len=1)],
        1,
        fast_forward=fast_forward,
    )
    _, (second_start_ps, second_ps, _), (third_start_ps, third_ps, _) = times_of(recorder)
    assert third_start_ps == second_start_ps + second_ps
    columns = recorder.requests.columns()
    [finish_ps] = columns["finish_ps"][columns["request_id"] == 1].tolist()
    assert finish_ps == third_start_ps + third_ps
    assert recorder.totals.finished == 1


def test_a_cancelled_request_has_a_time_of_its_end_and_no_latency():
    """It ends behind its two chunks that were planned already."""
    requests = [LONG_PROMPT, Request(1, arrival_ps=0, prompt_len=4, output_len=3)]
    recorder = run(requests, 1, fast_forward=True)
    second_ps, _, _ = times_of(recorder)[2]
    columns = request_columns(recorder)
    assert columns["request_id"].tolist() == [0, 1]
    np.testing.assert_array_equal(columns["cancelled_s"], [second_ps / PS, np.nan])
    first, finish = columns["first_token_s"][1], columns["finish_s"][1]
    np.testing.assert_array_equal(columns["tpot_s"], [np.nan, (finish - first) / 2])


def test_a_request_may_be_cancelled_when_time_begins():
    recorder = run([LONG_PROMPT], 1, fast_forward=True)
    recorder.cancellations[0] = 0
    assert request_columns(recorder)["cancelled_s"].tolist() == [0]


def test_dropped_plans_are_the_same_fast_and_slow():
    requests = [LONG_PROMPT, Request(1, arrival_ps=0, prompt_len=7, output_len=9)]
    for cancel_ps in range(1, 10**9, 10**8 // 3):
        fast, slow = (run(requests, cancel_ps, fast_forward=way) for way in (True, False))
        assert_same(fast, slow)
