"""What a closed loop sends when: after the answers that a request waits for, and so many sessions at a time."""

import numpy as np
import pytest
from by_hand import scheduler_of
from ticks import MS, OneMillisecond

from testbed.core.errors import InputError
from testbed.core.request import PS, Rows
from testbed.core.sessions import SessionWorkload, Turns, likely_order
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute
from testbed.sim.arrivals import Poisson, Sessions
from testbed.sim.simulation import simulate


def turns(session, after, wait_s, answer_s=None):
    wait_s = np.array(wait_s, float)
    return Turns(np.array(session), after, wait_s, np.zeros(len(after)) if answer_s is None else np.array(answer_s))


def times(links, *, at_once=1, gap_s=0.0, lengths=(10, 5), max_len=512):
    """Arrivals and ends in ms by row, each iteration of 1 ms, so an answer of 5 tokens takes 5 ms."""
    size = len(links)
    prompts, outputs = (np.broadcast_to(np.array(part), size).copy() for part in lengths)
    workload = SessionWorkload(
        Rows(prompts, outputs, turns=links), np.zeros(size, np.int64), at_once=at_once, gap_ps=round(gap_s * PS)
    )
    policy = Paged(PoolSpec(1600, max_len), block_size=16)
    recorder = simulate(workload, scheduler_of(MixedPrefill, policy, Recompute()), OneMillisecond(), max_len)
    columns = recorder.requests.columns()
    order = np.argsort(columns["request_id"])
    return [(columns[name][order] // MS).tolist() for name in ("arrival_ps", "finish_ps")], recorder


def test_the_next_request_goes_out_a_think_time_after_the_last_answer_has_ended():
    (arrivals, ends), _ = times(turns([0, 0, 0], [(), (0,), (1,)], [0, 0.1, 0.007]))
    assert (arrivals, ends) == ([0, 105, 117], [5, 110, 122])


def test_sub_agents_run_beside_each_other_and_the_parent_waits_for_the_last():
    (arrivals, ends), _ = times(turns([0] * 4, [(), (0,), (0,), (0, 1, 2)], [0, 0.01, 0.03, 0.002]))
    assert arrivals == [0, 15, 35, 42]
    assert ends[2] == 40


def test_so_many_sessions_at_a_time_the_first_apart():
    links = turns([0, 1, 2, 3], [()] * 4, [0, 0, 0, 0.02])
    (arrivals, _), _ = times(links, at_once=2, gap_s=0.003)
    assert arrivals == [0, 3, 5, 8 + 20]


def test_a_rejected_request_has_ended_and_its_session_goes_on():
    (arrivals, _), recorder = times(turns([0, 0], [(), (0,)], [0, 0.004]), lengths=([600, 10], 5))
    assert recorder.totals.rejected == 1
    assert arrivals == [0, 4]


def test_no_request_at_all_ends_at_once():
    _, recorder = times(turns(np.empty(0, np.int64), [], []), lengths=(np.empty(0, int), np.empty(0, int)))
    assert recorder.end_ps == 0


def test_the_likely_order_keeps_turns_and_follows_the_slots():
    links = turns([0, 0, 1, 2], [(), (0,), (), ()], [0, 10, 0, 0], [1, 1, 3, 1])
    assert likely_order(links, 2, 0.5).tolist() == [0, 2, 3, 1]
    taken = links.take(np.array([0, 2, 3, 1]))
    assert taken.after == [(), (), (), (0,)]
    assert taken.session.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("links", "culprit"),
    [
        (([0, 0], [(1,), ()], [0, 0]), "row 0 waits for rows"),
        (([0, 1], [(), (0,)], [0, 0]), "row 1 waits for rows"),
        (([0], [()], [-1]), "row 0: it waits -1.0 s"),
        (([0], [()], [np.nan]), "row 0: it waits nan s"),
    ],
)
def test_turns_are_checked(links, culprit):
    with pytest.raises(InputError, match=culprit):
        turns(*links)


def test_sessions_need_turns_and_cut_long_thinking():
    rows = Rows(np.array([3, 4]), np.array([1, 1]))
    with pytest.raises(InputError, match="trace=agent_sessions"):
        Sessions(2).workload(rows, 1, False)
    rows = Rows(rows.prompt_len, rows.output_len, turns=turns([0, 0], [(), (0,)], [0, 90]))
    assert Sessions(2, max_think_s=60).workload(rows, 1, False).turns.wait_s.tolist() == [0, 60]
    with pytest.raises(InputError, match="at_once is 0"):
        Sessions(0)
    with pytest.raises(InputError, match="no times of its own"):
        Sessions(1).times_ps(rows, 0)
    assert len(Poisson(1, 10).times_ps(None, 0))
