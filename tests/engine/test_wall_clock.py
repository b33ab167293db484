"""The clock of a GPU: calls at their times, work from other threads, and polling."""

import threading
import time

import pytest

from testbed.core.errors import PlugInError
from testbed.core.request import PS
from testbed.cost.model import UNBOUNDED
from testbed.engine.wall_clock import StepClock, WallClock


def loop(clock, alarm, events, num_turns=1):
    for _ in range(num_turns):
        yield alarm.set(UNBOUNDED)
        events.append("turn")


def test_calls_come_at_their_times_and_wake_the_loop():
    clock, events = WallClock(), []
    alarm = clock.alarm()
    clock.call_at(PS // 50, lambda: events.append("second") or alarm.bring_forward(clock.now_ps))
    clock.call_at(PS // 100, lambda: events.append("first"))
    clock.run(loop(clock, alarm, events))
    assert events == ["first", "second", "turn"]
    assert clock.now_ps >= PS // 50


def test_another_thread_wakes_a_loop_that_waits_for_ever():
    clock, events = WallClock(), []
    alarm = clock.alarm()

    def later():
        time.sleep(0.02)
        clock.post(lambda: events.append("posted") or alarm.bring_forward(clock.now_ps))

    thread = threading.Thread(target=later)
    thread.start()
    clock.run(loop(clock, alarm, events))
    thread.join()
    assert events == ["posted", "turn"]


def test_polled_condition_wakes_the_loop():
    clock, events = WallClock(), []
    alarm = clock.alarm()
    clock.is_polled = lambda: True

    def poll():
        events.append("poll")
        if len(events) == 3:
            alarm.bring_forward(clock.now_ps)

    clock.poll = poll
    clock.run(loop(clock, alarm, events))
    assert events == ["poll"] * 3 + ["turn"]


def test_a_step_takes_a_second_unless_it_is_given():
    clock = StepClock()
    clock.iteration_ended()
    assert clock.now_ps == PS


def test_steps_are_the_same_on_every_machine():
    clock, events = StepClock(0.5), []
    alarm = clock.alarm()
    clock.call_at(3 * PS, lambda: alarm.bring_forward(clock.now_ps))
    clock.run(loop(clock, alarm, events))
    assert clock.now_ps == 3 * PS
    clock.iteration_ended()
    assert clock.now_ps == 3 * PS + PS // 2
    with pytest.raises(PlugInError, match="waits for ever"):
        clock.run(loop(clock, alarm, events))
