"""Refusals of plug-ins by engine and scheduler: wrong answers, costs and choices, each named with
who gave it.
"""

import re
from dataclasses import replace

import pytest
from altered import altered
from manual_driver import ManualDriver, scheduler_of
from refusals import refuses
from tiny import MS, FastMillisecond, OneMillisecond

from testbed.core.errors import PlugInError
from testbed.core.request import Request
from testbed.core.slots import GRANTED, Copy, Fixed, Grant, Growth, Move, Ops, Refusal
from testbed.cost.model import UNBOUNDED, Affine
from testbed.engine.audit import check_balance
from testbed.engine.simulation import simulate
from testbed.engine.totals import Totals
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.sched.preemption import Recompute, Swap
from testbed.sched.separate import SeparatePrefill


def serve(
    policy=Paged, scheduler=SeparatePrefill, cost=None, lengths=(10, 20), max_len=64, **options
):
    served = scheduler_of(scheduler, policy(PoolSpec(256, max_len), block_size=4), Recompute())
    requests = [Request(i, 0, *lengths) for i in range(2)]
    return simulate(requests, served, cost or OneMillisecond(), max_len, **options)


def cost_taking(prompt_ps, decode=None):
    class Odd(OneMillisecond):
        def iteration(self, work):
            return prompt_ps

        def decode(self, work):
            return Affine(prompt_ps, 0, 1) if decode is None else decode

    return Odd()


TAKES = "Odd says that an iteration takes"
DIFFER = r"Odd says \[\d+, \d+\] ps by decode\(\), \[\d+, \d+\] ps by iteration\(\)"
SPANS = {
    **dict.fromkeys(
        [Affine(MS, -1, 5), Affine(MS, 0.5, 5), Affine(MS, 0, 0), Affine(0, 1, UNBOUNDED)], TAKES
    ),
    **dict.fromkeys([Affine(MS, 1, UNBOUNDED), Affine(MS + 1, 0, UNBOUNDED)], DIFFER),
}


@pytest.mark.parametrize("duration", [1e9, 0, -5, True, None])
def test_iteration_time_must_be_a_positive_integer(duration):
    refuses(TAKES, serve, cost=cost_taking(duration), error=PlugInError)


@pytest.mark.parametrize(("decode", "reported"), SPANS.items())
def test_span_times_must_be_those_of_iterations_and_not_decrease_or_become_negative(
    decode, reported
):
    refuses(reported, serve, cost=cost_taking(MS, decode), error=PlugInError)


def odd(**changes):
    return altered("Odd", **changes)


def using(**wrong):
    return odd(usage=lambda policy, usage: usage._replace(**wrong))


def footprint(waste):
    return odd(footprint=lambda *_: waste)


def ordering(ops):
    return odd(admit=lambda policy, grants, *_: [grant._replace(ops=ops) for grant in grants])


def growing(slots):
    return odd(
        extend=lambda policy, answer, batch, num_tokens: (
            answer if num_tokens == 1 else answer._replace(growth=Growth(slots))
        )
    )


COUNTS = r"Odd(| miscounts its slots| counts parts of slots): "
LONG = {"cost": FastMillisecond(), "lengths": (10, 220), "max_len": 256}
MARKED = {"cost": FastMillisecond(), "snapshots_ps": [12 * MS]}
ANSWERS = {
    "negative live": (using(live=-1), COUNTS, {}),
    "more live than held": (using(live=250), COUNTS, {}),
    "more held than allocated": (using(held=250), COUNTS, {}),
    "cached and free do not add up": (using(cached=4), COUNTS, {}),
    "negative cached": (using(cached=-4, free=244), COUNTS, {}),
    "a run larger than what is free": (using(largest_free=253), COUNTS, {}),
    "negative saved": (using(saved=-1), COUNTS, {}),
    "half a slot": (using(live=8.5), COUNTS, {}),
    "refused though nothing runs": (
        odd(admit=lambda *_: Refusal.LATER),
        r"Odd refuses request 0 \(10 tokens\) though nothing runs",
        LONG,
    ),
    "a footprint that is too large": (
        footprint(Fixed(1000)),
        r"Odd: usage\(\) does not go with its tables or footprints",
        LONG,
    ),
    "a footprint that is too small": (
        footprint(Fixed(11)),
        r"Odd: .*clause 11: Fixed\(slots=11\) gives 11 .* table of Sequence\(0\) has 12",
        LONG,
    ),
    "no footprint": (
        footprint(None),
        r"Odd: .*clause 10: footprint\(\) is None",
        LONG,
    ),
    "a longest sequence of parts of tokens": (
        odd(max_seq_len=lambda *_: 64.5),
        r"Odd answered 64\.5; max_seq_len\(\)",
        {},
    ),
    "too many steps": (
        odd(guaranteed_steps=lambda *_: 1000),
        r"Odd promised \d+ more steps by guaranteed_steps\(\) and then answered",
        LONG,
    ),
    "steps below nothing": (odd(guaranteed_steps=lambda *_: -1), "Odd promises -1 steps", LONG),
    "a table that is too short": (
        odd(table=lambda policy, table, *_: table[:-1]),
        r"Odd: .*clause 11: .* the table of Sequence\(0\) has 8, with the tables of "
        r"\[Sequence\(0\), Seq",
        {},
    ),
    **{
        f"a growth of {slots}": (
            growing(slots),
            rf"Odd took \d+ slots in several steps, and says {slots} by Grant.growth",
            MARKED,
        )
        for slots in (0, 4, 1000)
    },
    "a count below nothing": (
        ordering(Ops(extra=(("pages_mapped", -3),))),
        "count -6 pages_mapped: less than nothing",
        {},
    ),
    "a copy of nothing": (
        ordering(Ops(copies=(Copy(0, 16, 0),))),
        "copy 0 slots: less than nothing",
        {},
    ),
    "a move of less than nothing": (
        ordering(Ops(moves=(Move("device", "host", (Copy(0, 0, -16),)),))),
        "move -16 slots from device to host: less",
        {},
    ),
}


@pytest.mark.parametrize(("policy", "reported", "options"), ANSWERS.values(), ids=ANSWERS)
def test_wrong_answers_of_a_policy_are_named(policy, reported, options):
    refuses(reported, serve, policy, **options, error=PlugInError)


@pytest.mark.parametrize("answer", [None, 12, Fixed(8.5)])
def test_the_footprint_of_each_sequence_is_one(answer):
    """The third comes between the checks of all."""
    policy = odd(footprint=lambda _, footprint, seq: answer if seq.seq_id == 2 else footprint)
    served = scheduler_of(SeparatePrefill, policy(PoolSpec(256, 64), block_size=4), Recompute())
    requests = [Request(i, i * 5 * MS, 10, 20) for i in range(3)]
    reported = f"Odd answered {re.escape(repr(answer))}; "
    refuses(reported, simulate, requests, served, OneMillisecond(), 64, error=PlugInError)


def test_a_growth_while_slots_are_shared_is_named_beside_that_of_whole_blocks():
    """Two sequences share two blocks of their prompt; in 12 steps each takes three of its own."""
    policy = growing(20)(PoolSpec(256, 64), block_size=4)
    served = scheduler_of(SeparatePrefill, policy, Recompute())
    requests = [Request(0, 0, 10, 14, num_seqs=2)]
    reported = "Odd took 20 slots if whole blocks would take 24"
    refuses(reported, simulate, requests, served, FastMillisecond(), 64, error=PlugInError)


@pytest.mark.parametrize(
    ("pool", "reported"),
    [
        ({"num_slots": 128}, r"Paged has 128 slots by usage\(\); 64 were given"),
        ({"tiers": host(128)}, "Paged moves slots up to [0-9]+ of the host; 8 were given"),
    ],
)
def test_more_slots_than_the_pool_has_are_reported(pool, reported):
    """Paged memory over another pool than it was given."""
    given = PoolSpec(64, 64, host(8))
    scheduler = scheduler_of(
        SeparatePrefill, Paged(replace(given, **pool), block_size=4, watermark=0), Swap()
    )
    requests = [Request(i, arrival_ps=0, prompt_len=10, output_len=40) for i in range(2)]
    refuses(
        reported, simulate, requests, scheduler, OneMillisecond(), 64, pool=given, error=PlugInError
    )


class DropsRequest(SeparatePrefill):
    def plan(self):
        plan = super().plan()
        self.state.waiting.clear()
        return plan


class AddsRequestTwice(SeparatePrefill):
    def add(self, request):
        group = super().add(request)
        self.state.waiting.append(group)
        return group


@pytest.mark.parametrize("kind", [DropsRequest, AddsRequestTwice])
def test_scheduler_must_run_every_request_once(kind):
    class OneByOne(kind):
        def __init__(self, *arguments, **limits):
            super().__init__(*arguments, **{**limits, "max_num_seqs": 1})

    reported = "OneByOne lost a request, or has one twice: 2 arrived, 0 are finished"
    refuses(reported, serve, scheduler=OneByOne, error=PlugInError)


@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_scheduler_wakes_at_a_whole_number_of_picoseconds(fast_forward):
    class WakesLater(SeparatePrefill):
        def plan(self):
            plan = super().plan()
            plan.wake_ps = 50.5 * MS
            return plan

    options = {"scheduler": WakesLater, "error": PlugInError, "fast_forward": fast_forward}
    refuses(r"WakesLater answered 50500000000\.0", serve, **options)


def run_of(kind, rule=Recompute, num_seqs=1):
    policy = kind(PoolSpec(256, 64, host(64)), block_size=4)
    run = ManualDriver(scheduler_of(SeparatePrefill, policy, rule()))
    run.add(Request(0, arrival_ps=0, prompt_len=10, output_len=20, num_seqs=num_seqs))
    return run


def admitting(answer):
    return odd(admit=lambda *_: answer)


@pytest.mark.parametrize(
    "answer", [None, True, GRANTED, (GRANTED,), [], [GRANTED] * 2, [None], [3]]
)
def test_admit_must_return_a_refusal_or_grants(answer):
    refuses("Odd answered", lambda: run_of(admitting(answer)).step(), error=PlugInError)


@pytest.mark.parametrize("num_cached", [-1, 11])
def test_cached_tokens_must_lie_within_the_prompt(num_cached):
    run = run_of(admitting([Grant(num_cached)]))
    refuses(r"Odd answered Grant\(num_cached=.* has 10 tokens", run.step, error=PlugInError)


@pytest.mark.parametrize(("method", "answer"), [("extend", None), ("move", False)])
def test_extend_and_move_must_return_an_answer(method, answer):
    run = run_of(odd(**{method: lambda *_: answer}), Swap)
    run.step()
    call = run.step if method == "extend" else run.preempt
    refuses(f"Odd answered {answer}; it gives a Grant or a Refusal", call, error=PlugInError)


def test_victim_must_be_running():
    class PreemptsWaiting(Recompute):
        def victim(self, running, batch):
            return run.state.waiting[0]

    run = run_of(Paged, PreemptsWaiting)
    run.step()
    run.add(Request(1, arrival_ps=0, prompt_len=10, output_len=20))
    refuses(
        r"PreemptsWaiting answered SequenceGroup\(1, waiting\); victim\(\) gives",
        run.preempt,
        error=PlugInError,
    )


def test_ended_requests_are_in_no_queue():
    scheduler = scheduler_of(SeparatePrefill, Paged(PoolSpec(256, 64), block_size=4), Recompute())
    check_balance(scheduler, Totals(arrived=3, finished=1, rejected=1, cancelled=1))
    refuses("lost a request", check_balance, scheduler, Totals(arrived=2), error=PlugInError)


def test_totals_since_others_are_the_differences():
    assert Totals(arrived=5, finished=3).since(Totals(arrived=2, finished=1)) == Totals(
        arrived=3, finished=2
    )
