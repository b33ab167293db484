"""Answers and choices that break the contract are refused where they are given, with the name of who gave them."""

import pytest
from manual_driver import ManualDriver, scheduler_of
from refusals import refuses

from testbed.core.errors import PlugInError
from testbed.core.request import Request
from testbed.core.slots import GRANTED, Grant
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.sched.preemption import Recompute, Swap
from testbed.sched.separate import SeparatePrefill


def run_of(kind, rule=Recompute, num_seqs=1):
    policy = kind(PoolSpec(256, 64, host(64)), block_size=4)
    run = ManualDriver(scheduler_of(SeparatePrefill, policy, rule()))
    run.add(Request(0, 0, 10, 20, num_seqs=num_seqs))
    return run


def admitting(answer, base=Paged):
    class Odd(base):
        def admit(self, seqs, num_tokens):
            super().admit(seqs, num_tokens)
            return answer

    return Odd


@pytest.mark.parametrize("answer", [None, True, GRANTED, (GRANTED,), [], [GRANTED] * 2, [None], [3]])
def test_admit_must_return_a_refusal_or_grants(answer):
    refuses("Odd answered", lambda: run_of(admitting(answer)).step(), error=PlugInError)


@pytest.mark.parametrize("num_cached", [-1, 11])
def test_cached_tokens_must_lie_within_the_prompt(num_cached):
    with pytest.raises(PlugInError, match=r"Odd answered Grant\(num_cached=.* has 10 tokens"):
        run_of(admitting([Grant(num_cached)])).step()


@pytest.mark.parametrize(("method", "answer"), [("extend", None), ("move", False)])
def test_extend_and_move_must_return_an_answer(method, answer):
    run = run_of(type("Mute", (Paged,), {method: lambda self, *arguments: answer}), Swap)
    run.step()
    with pytest.raises(PlugInError, match=f"Mute answered {answer}; it gives a Grant or a Refusal"):
        run.step() if method == "extend" else run.preempt()


def test_victim_must_be_running():
    class PreemptsWaiting(Recompute):
        def victim(self, running, batch):
            return run.state.waiting[0]

    run = run_of(Paged, PreemptsWaiting)
    run.step()
    run.add(Request(1, 0, 10, 20))
    refuses(r"PreemptsWaiting answered SequenceGroup\(1, waiting\); victim\(\) gives", run.preempt, error=PlugInError)
