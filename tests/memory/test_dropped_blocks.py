"""Sequences that need fewer slots while they grow: which blocks they drop, what they need on the
way, and what that spares in a run.
"""

from functools import partial

import pytest
from manual_driver import admit_and_prefill, extend, samples, sequence
from tiny import analytic

from testbed.checks.contract.search import POOLS, broken_by, histories_of
from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.core.slots import GRANTED, Grant, Refusal
from testbed.engine.simulation import simulate
from testbed.memory.dropping.prompt_budget import PromptBudget
from testbed.memory.dropping.quantised_groups import QuantisedGroups
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute

POOL = PoolSpec(40, 200)  # ten blocks of four
SHRINKS = Grant(ends_refusals=True)


def ids(policy, seq):
    return [extent.start // policy.block_size for extent in policy.table(seq)]


def test_a_prompt_keeps_its_budget_from_the_first_step_on():
    policy, seq = PromptBudget(POOL, budget=12, block_size=4), sequence(0, 26)
    admit_and_prefill(policy, [seq], 20)
    extend(policy, [seq], 6)
    assert (ids(policy, seq), policy.usage().live) == ([0, 1, 2, 3, 4, 5, 6], 26)
    assert extend(policy, [seq], 1) == SHRINKS
    assert (ids(policy, seq), policy.usage().live) == ([0, 5, 6], 11)  # 16 of 27 are dropped
    assert extend(policy, [seq], 1) == GRANTED
    assert extend(policy, [seq], 1) == GRANTED
    assert len(ids(policy, seq)) == 4  # what is generated stays


def test_a_budget_of_all_tokens_drops_as_many_as_are_generated():
    policy, seq = PromptBudget(POOL, budget=8, interval=4, block_size=4), sequence(0, 3)
    admit_and_prefill(policy, [seq], 3)
    held = []
    for _ in range(20):
        extend(policy, [seq], 1)
        held.append(len(ids(policy, seq)))
    assert held == [1, 2, 2, 2, 2] + 15 * [3]
    assert ids(policy, seq)[0] == 0  # the first block stays


def test_a_group_is_packed_when_newer_tokens_are_enough():
    options = {"group": 16, "residual": 8, "ratio": 2, "block_size": 4}
    policy, seq = QuantisedGroups(POOL, **options), sequence(0, 10)
    admit_and_prefill(policy, [seq], 10)
    extend(policy, [seq], 13)
    assert ids(policy, seq) == [0, 1, 2, 3, 4, 5]
    assert extend(policy, [seq], 1) == SHRINKS  # 24 tokens: 16 behind the last 8
    assert (ids(policy, seq), policy.usage().live) == ([0, 1, 4, 5], 8 + 8)
    extend(policy, [seq], 16)
    assert len(ids(policy, seq)) == 2 + 2 + 2


def test_a_call_needs_what_its_tokens_need_on_the_way():
    """A prompt of 26 tokens needs seven blocks, though three are left behind it."""
    policy, other = PromptBudget(POOL, budget=12, block_size=4), sequence(1, 16)
    admit_and_prefill(policy, [other], 16)
    assert policy.admit([sequence(0, 26)], 27) is Refusal.LATER
    assert policy.max_seq_len(26, 1) == 40 + 4 * 4
    assert policy.max_seq_len(41, 1) == 40  # the prompt itself does not fit
    assert policy.max_seq_len(20, 2) == 20 + 2 * 4
    assert policy.admit(samples(21), 21) is Refusal.NEVER


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (PromptBudget, {"budget": 16}),
        (QuantisedGroups, {"group": 100}),
        (QuantisedGroups, {"residual": 8}),
        (PromptBudget, {"block_size": 64}),
    ],
)
def test_what_fills_no_blocks_is_refused(kind, options):
    with pytest.raises(InputError, match=next(iter(options))):
        kind(POOL, **options)


class ForgetsItsPrompt(PromptBudget):
    """Asks for what a prompt leaves, not for what it needs on the way."""

    def max_seq_len(self, prompt_len, num_seqs):
        return self.max_len


class DropsEarly(PromptBudget):
    """Drops of a prompt that is still computed, but counts its tokens."""

    def num_stored(self, prompt_len, num_tokens):
        return num_tokens


@pytest.mark.parametrize(("kind", "clause"), [(ForgetsItsPrompt, 3), (DropsEarly, 4)])
def test_the_check_finds_a_wrong_count(kind, clause):
    make = partial(kind, budget=9, block_size=4)
    histories = histories_of(make, POOLS[0])
    found = (broken_by(make, POOLS[0], histories.draw()) for _ in range(30))
    assert next(filter(None, found)).clause == clause


def test_a_budget_serves_more_at_once_and_reads_less():
    requests = [Request(number, 0, 64, output_len=40) for number in range(12)]
    cost = analytic(overhead_s=1e-3)
    runs = {}
    for make in (Paged, partial(PromptBudget, budget=16)):
        policy = make(PoolSpec(320, 200), block_size=4)
        limits = {"max_num_batched_tokens": 256, "max_num_seqs": 12}
        scheduler = MixedPrefill(policy, Recompute(), **limits)
        recorder = simulate(requests, scheduler, cost, 200)
        runs[policy.__class__] = recorder.end_ps, recorder.totals
    paged, budget = runs[Paged], runs[PromptBudget]
    assert budget[1].finished == paged[1].finished == 12
    assert budget[0] < 0.6 * paged[0]
