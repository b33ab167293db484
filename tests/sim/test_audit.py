"""What the engine refuses of plug-ins, each once."""

from dataclasses import replace

import pytest
from manual_driver import scheduler_of
from refusals import refuses
from ticks import MS, FastMillisecond, OneMillisecond

from testbed.core.errors import PlugInError
from testbed.core.request import Request
from testbed.core.slots import Copy, Fixed, Growth, Move, Ops, Refusal
from testbed.cost.model import UNBOUNDED, Affine
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.sched.preemption import Recompute, Swap
from testbed.sched.separate import SeparatePrefill
from testbed.sim.simulation import simulate


def serve(policy=Paged, scheduler=SeparatePrefill, cost=None, lengths=(10, 20), max_len=64, **options):
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


@pytest.mark.parametrize("duration", [1e9, 0, -5, True, None])
def test_iteration_time_must_be_a_positive_integer(duration):
    refuses("Odd says that an iteration takes", serve, cost=cost_taking(duration), error=PlugInError)


@pytest.mark.parametrize(
    "durations", [Affine(MS, -1, 5), Affine(MS, 0.5, 5), Affine(MS, 0, 0), Affine(0, 1, UNBOUNDED)]
)
def test_span_times_must_not_decrease_or_become_negative(durations):
    refuses("Odd says that an iteration takes", serve, cost=cost_taking(MS, durations), error=PlugInError)


WRONG_USAGE = {
    "negative live": {"live": -1},
    "more live than held": {"live": 250},
    "more held than allocated": {"held": 250},
    "cached and free do not add up": {"cached": 4},
    "negative cached": {"cached": -4, "free": 244},
    "a run larger than what is free": {"largest_free": 253},
    "negative saved": {"saved": -1},
    "half a slot": {"live": 8.5},
}


@pytest.mark.parametrize("wrong", WRONG_USAGE)
def test_usage_must_sum_to_the_pool(wrong):
    class Miscounting(Paged):
        def usage(self):
            return super().usage()._replace(**WRONG_USAGE[wrong])

    reported = r"Miscounting(| miscounts its slots| counts parts of slots): "
    refuses(reported, serve, Miscounting, error=PlugInError)


@pytest.mark.parametrize(
    ("method", "answer", "reported"),
    [
        ("admit", Refusal.LATER, r"refuses request 0 \(10 tokens\) though nothing runs"),
        ("footprint", Fixed(1000), r": usage\(\) does not go with its tables or footprints"),
        ("footprint", Fixed(11), r": .*clause 11: Fixed\(slots=11\) gives 11 slots .* table of Sequence\(0\) has 12"),
        ("footprint", None, r": .*clause 11: footprint\(\) says nothing of Sequence\(0\)"),
        ("guaranteed_steps", 1000, r"promised \d+ more steps by guaranteed_steps\(\) and then answered"),
        ("guaranteed_steps", -1, "promises -1 steps"),
    ],
)
def test_policy_answers_must_match_the_plan(method, answer, reported):
    odd = type("Odd", (Paged,), {method: lambda self, *arguments: answer})
    refuses(f"Odd ?{reported}", serve, odd, cost=FastMillisecond(), lengths=(10, 220), max_len=256, error=PlugInError)


def test_a_table_that_is_too_short_is_named_with_its_clause_and_sequences():
    class Cutting(Paged):
        def table(self, seq):
            return super().table(seq)[:-1]

    reported = r"Cutting: .*clause 11: .* the table of Sequence\(0\) has 8, with the tables of \[Sequence\(0\), Seq"
    refuses(reported, serve, Cutting, error=PlugInError)


def larger(**pool):
    """Paged memory over another pool than it was given."""

    class Larger(Paged):
        def __init__(self, given, block_size=16):
            super().__init__(replace(given, **pool), block_size, watermark=0)

    return Larger


@pytest.mark.parametrize(
    ("kind", "reported"),
    [
        (larger(num_slots=128), "Larger has 128 slots by usage\\(\\); 64 were given"),
        (larger(tiers=host(128)), "Larger moves slots up to [0-9]+ of the host; 8 were given"),
    ],
)
def test_more_slots_than_the_pool_has_are_reported(kind, reported):
    given = PoolSpec(64, 64, host(8))
    scheduler = scheduler_of(SeparatePrefill, kind(given, block_size=4), Swap())
    requests = [Request(i, 0, 10, 40) for i in range(2)]
    refuses(reported, simulate, requests, scheduler, OneMillisecond(), 64, pool=given, error=PlugInError)


@pytest.mark.parametrize("decode", [Affine(MS, 1, UNBOUNDED), Affine(MS + 1, 0, UNBOUNDED)])
def test_decode_times_must_equal_iteration_times(decode):
    with pytest.raises(PlugInError, match=r"Odd says \[\d+, \d+\] ps by decode\(\), \[\d+, \d+\] ps by iteration\(\)"):
        serve(cost=cost_taking(MS, decode))


@pytest.mark.parametrize("slots", [0, 4, 1000])
def test_slots_taken_in_a_span_must_match_its_growth(slots):
    class Silent(Paged):
        def extend(self, batch, num_tokens):
            answer = super().extend(batch, num_tokens)
            return answer if num_tokens == 1 else answer._replace(growth=Growth(slots))

    with pytest.raises(PlugInError, match=rf"Silent took \d+ slots in several steps, and says {slots} by Grant.growth"):
        serve(Silent, cost=FastMillisecond(), marks_ps=[12 * MS])


def test_dropped_tokens_must_be_declared():
    class Dropping(Paged):
        def num_stored(self, num_tokens):
            return min(num_tokens, 8)

    refuses("Dropping keeps 8 of 64 tokens, but does not declare drops_tokens", serve, Dropping, error=PlugInError)


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

    with pytest.raises(PlugInError, match="OneByOne lost a request, or has one twice: 2 arrived, 0 are finished"):
        serve(scheduler=OneByOne)


@pytest.mark.parametrize(
    ("ops", "reported"),
    [
        (Ops(extra=(("pages_mapped", -3),)), "count -6 pages_mapped: less than nothing"),
        (Ops(copies=(Copy(0, 16, 0),)), "copy 0 slots: less than nothing"),
        (Ops(moves=(Move("device", "host", (Copy(0, 0, -16),)),)), "move -16 slots from device to host: less"),
    ],
)
def test_negative_operation_counts_are_refused(ops, reported):
    class Backward(Paged):
        def admit(self, seqs, num_tokens):
            return [grant._replace(ops=ops) for grant in super().admit(seqs, num_tokens)]

    refuses(reported, serve, Backward, error=PlugInError)
