"""Answers and choices that break the contract are refused where they are given, with the name of who gave them."""

import pytest
from by_hand import ByHand, scheduler_of

from testbed.core.errors import PlugInError
from testbed.core.request import Request
from testbed.core.slots import GRANTED, Grant
from testbed.memory.contiguous.contiguous import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.sched.decoding import preempt
from testbed.sched.plan import Plan
from testbed.sched.preemption import Recompute, Swap
from testbed.sched.separate import SeparatePrefill


def run_of(kind, rule=Recompute, num_seqs=1):
    policy = kind(PoolSpec(256, 64, host(64)), block_size=4)
    run = ByHand(scheduler_of(SeparatePrefill, policy, rule()))
    run.add(Request(0, 0, 10, 20, num_seqs=num_seqs))
    return run


def admitting(answer, base=Paged):
    class Odd(base):
        def admit(self, seqs, num_tokens):
            super().admit(seqs, num_tokens)
            return answer

    return Odd


@pytest.mark.parametrize("answer", [None, True, GRANTED, (GRANTED,), [], [GRANTED] * 2, [None], [3]])
def test_admit_gives_a_refusal_or_a_grant_for_each_sequence(answer):
    with pytest.raises(PlugInError, match="Odd answered"):
        run_of(admitting(answer)).step()


def test_a_policy_that_does_not_share_grants_every_sequence():
    run_of(admitting([GRANTED] * 3, ContiguousMax), num_seqs=3).step()
    with pytest.raises(PlugInError, match="a list of a Grant for each"):
        run_of(admitting([GRANTED], ContiguousMax), num_seqs=3).step()


@pytest.mark.parametrize("num_cached", [-1, 11])
def test_what_is_cached_lies_within_the_prompt(num_cached):
    with pytest.raises(PlugInError, match=r"Odd answered Grant\(num_cached=.* has 10 tokens"):
        run_of(admitting([Grant(num_cached)])).step()


def test_extend_gives_an_answer():
    class Mute(Paged):
        def extend(self, batch, num_tokens):
            return None

    run = run_of(Mute)
    run.step()
    with pytest.raises(PlugInError, match="Mute answered None; it gives a Grant or a Refusal"):
        run.step()


def test_move_gives_an_answer():
    class Mute(Paged):
        def move(self, seqs, tier):
            return False

    run = run_of(Mute, Swap)
    run.step()
    with pytest.raises(PlugInError, match="Mute answered False"):
        preempt(run.residents, Plan())


def test_a_victim_is_resident():
    class Vengeful(Recompute):
        def victim(self, running, batch):
            return run.residents.waiting[0]

    run = run_of(Paged, Vengeful)
    run.step()
    run.add(Request(1, 0, 10, 20))
    with pytest.raises(PlugInError, match=r"Vengeful answered SequenceGroup\(1, waiting\); victim\(\) gives"):
        preempt(run.residents, Plan())
