"""A simulation in real time: events at their times, requests from outside, and how far it is
behind.
"""

import asyncio

import pytest
from manual_driver import paged, scheduler_of
from tiny import MS, FastMillisecond
from virtual_time import run_virtually

from testbed.core.request import PS, Request
from testbed.engine.engine_parts import EngineParts
from testbed.engine.listeners import TokenListener
from testbed.engine.real_time import RealTimeClock
from testbed.engine.recorder import Recorder
from testbed.engine.sim_clock import SimClock
from testbed.engine.simulation import simulated_engine
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute


class Times(TokenListener):
    """The times of tokens and ends, by the real clock and by the simulated one."""

    def __init__(self, now_s):
        self.now_s = now_s
        self.tokens = []
        self.ends = []
        self.all_ended = asyncio.Event()
        self.num_awaited = 0

    def on_tokens(self, request_id, count, time_ps):
        self.tokens.append((request_id, self.now_s(), time_ps))

    def on_finished(self, request_id, time_ps):
        self._end("finished", request_id, time_ps)

    def on_rejected(self, request_id, reason, time_ps):
        self._end("rejected", request_id, time_ps)

    def on_cancelled(self, request_id, time_ps):
        self._end("cancelled", request_id, time_ps)

    def _end(self, kind, request_id, time_ps):
        self.ends.append((kind, request_id))
        if len(self.ends) == self.num_awaited:
            self.all_ended.set()


def engine_in_real_time(speed):
    clock, now_s = SimClock(), asyncio.get_running_loop().time
    scheduler = scheduler_of(MixedPrefill, paged(160, max_len=512), Recompute())
    engine = simulated_engine(clock, EngineParts(scheduler, FastMillisecond(), 512), Recorder())
    times = Times(now_s)
    engine.listen_to_tokens(times)
    clock.start(engine.serve())
    return engine, RealTimeClock(clock, speed, now_s), times


def submit(engine, real, request_id, prompt_len, output_len):
    return real.call(
        lambda: engine.submit(Request(request_id, real.clock.now_ps, prompt_len, output_len))
    )


@pytest.mark.parametrize("speed", [1.0, 4.0])
def test_tokens_come_when_their_iterations_end(speed):
    """200 iterations of a millisecond each, in one span; the real clock agrees to a millisecond."""

    async def served():
        engine, real, times = engine_in_real_time(speed)
        times.num_awaited = 2
        task = asyncio.create_task(real.run())
        await asyncio.sleep(0.02)
        began_s, began_ps = times.now_s(), submit(engine, real, 0, 8, 200)
        await asyncio.sleep(0.02)
        submit(engine, real, 1, 8, 20)
        await times.all_ended.wait()
        real.close()
        await task
        return times, began_s, began_ps, engine

    times, began_s, began_ps, engine = run_virtually(served())
    assert times.ends == [("finished", 1), ("finished", 0)]
    own = [(at_s, at_ps) for request_id, at_s, at_ps in times.tokens if request_id == 0]
    assert [at_ps - own[0][1] for _, at_ps in own] == [i * MS for i in range(200)]
    late_s = [at_s - began_s - (at_ps - began_ps) / PS / speed for at_s, at_ps in own]
    assert -0.001 < min(late_s) <= max(late_s) < 0.001
    engine.recorder.settle()
    assert engine.recorder.spans.columns()["iterations"].max() > 20


def test_a_request_that_goes_away_frees_its_slots():
    async def served():
        engine, real, times = engine_in_real_time(1.0)
        times.num_awaited = 3
        task = asyncio.create_task(real.run())
        submit(engine, real, 0, 8, 400)
        submit(engine, real, 1, 8, 20)
        submit(engine, real, 2, 8, 600)  # never fits
        await asyncio.sleep(0.06)
        real.call(lambda: engine.cancel(0))
        await times.all_ended.wait()
        real.close()
        await task
        return engine, times

    engine, times = run_virtually(served())
    assert times.ends == [("rejected", 2), ("finished", 1), ("cancelled", 0)]
    assert engine.scheduler.policy.usage().held == 0
    assert engine.recorder.totals.cancelled == 1


def test_a_simulation_that_is_too_slow_says_how_far_it_is_behind():
    """Real time goes on by 10 ms whenever it is read."""

    async def served():
        now = [0.0]

        def now_s():
            now[0] += 0.01
            return now[0]

        clock = SimClock()
        real = RealTimeClock(clock, 1.0, now_s)
        assert real.max_lag_s == 0
        for i in range(5):
            clock.call_at(i * MS, lambda: None)
        real.close()
        await real.run()
        return real

    real = run_virtually(served())
    assert real.max_lag_s > 0.05
    assert real.lag_s == 0


def test_a_call_happens_when_its_cause_was_there_but_undoes_nothing():
    """Reading a request takes time, in which the simulation may have gone on."""

    async def served():
        now = {"s": 10.0}
        real = RealTimeClock(SimClock(), 2.0, lambda: now["s"])
        now["s"] = 10.5
        back = real.call(lambda: None, since_s=10.25)
        task = asyncio.create_task(real.run())
        await asyncio.sleep(0.01)
        at_ps = real.call(lambda: None)
        await asyncio.sleep(0.01)
        undone = real.call(lambda: None, since_s=10.25)
        real.close()
        await task
        return back, at_ps, undone

    assert run_virtually(served()) == (PS // 2, PS, PS)
