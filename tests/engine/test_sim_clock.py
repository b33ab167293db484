"""Engines on one clock take their turns in order of rank, and know whose turn is over."""

import pytest

from testbed.core.errors import InputError
from testbed.cost.model import UNBOUNDED
from testbed.engine.sim_clock import SimClock


def turns(clock, alarm, times_ps, notes):
    """An engine's loop: wakes at these times, and notes which alarms have rung by then."""
    for at_ps in times_ps:
        yield alarm.set(at_ps)
        notes.append((clock.now_ps, [other.has_rung() for other in clock.alarms]))


def test_no_alarm_rings_after_the_end_of_time(clock):
    first = clock.alarms[0]
    first.set(UNBOUNDED)  # never
    with pytest.raises(InputError):
        first.set(UNBOUNDED + 1)


def test_an_error_of_any_engine_is_raised_as_it_is(clock):
    """Also while the run waits for another one's end."""

    def failing():
        yield clock.env.timeout(1)
        raise InputError(key="cost", problem="has no time for this")

    other = clock.start(turns(clock, clock.alarms[0], [5], []))
    clock.start(failing())
    with pytest.raises(InputError, match="cost"):
        clock.env.run(until=other)


@pytest.fixture
def clock():
    clock = SimClock()
    for _ in range(3):
        clock.alarm()
    return clock


def run(clock, *times_ps):
    """The notes of three engines, each of which wakes at its own times: for each turn its time, and
    for each engine whether its turn of that time is over.
    """
    notes = []
    for alarm, own_ps in zip(clock.alarms, times_ps, strict=True):
        clock.start(turns(clock, alarm, own_ps, notes))
    clock.env.run()
    return notes


def test_a_turn_is_over_when_the_engine_or_a_later_one_has_had_its_own(clock):
    """At 5 ps all three wake, in order; a process that has had a turn gets no second one."""
    assert run(clock, [5], [5], [5]) == [
        (5, [True, False, False]),
        (5, [True, True, False]),
        (5, [True, True, True]),
    ]


def test_an_engine_that_does_not_wake_has_missed_its_turn_behind_a_later_one(clock):
    """At 5 ps only the second engine wakes."""
    turn_of_second, *_ = run(clock, [9], [5], [9])
    assert turn_of_second == (5, [True, True, False])


def test_time_that_goes_on_gives_every_process_a_turn_again(clock):
    """All three wake at 5 ps, the first one at 6 ps again."""
    *_, last_turn = run(clock, [5, 6], [5], [5])
    assert last_turn == (6, [True, False, False])


def test_an_alarm_that_is_set_again_for_the_same_time_has_rung(clock):
    first_turn, second_turn, *_ = run(clock, [5, 5], [7], [7])
    assert first_turn == (5, [True, False, False])
    assert second_turn == (5, [True, False, False])


def test_calls_come_before_all_turns_of_their_time(clock):
    seen = []
    clock.call_at(5, lambda: seen.append([alarm.has_rung() for alarm in clock.alarms]))
    run(clock, [5], [5], [5])
    assert seen == [[False, False, False]]


def test_an_alarm_that_is_brought_forward_rings_then(clock):
    first, *_ = clock.alarms
    clock.call_at(3, lambda: first.bring_forward(4))
    assert [at_ps for at_ps, _ in run(clock, [9], [20], [20])] == [4, 20, 20]
