"""What the engine refuses of plug-ins, each once."""

import pytest
from by_hand import scheduler_of
from ticks import MS, FastMillisecond, OneMillisecond

from testbed.core.errors import PlugInError
from testbed.core.request import Request
from testbed.core.slots import Extent, Fixed, Growth
from testbed.cost.model import UNBOUNDED, Affine
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.preemption import Recompute
from testbed.sched.separate import SeparatePrefill
from testbed.sim.simulation import simulate


def serve(policy=Paged, scheduler=SeparatePrefill, cost=None, fast_forward=True, marks_ps=()):
    served = scheduler_of(scheduler, policy(PoolSpec(256, 64), block_size=4), Recompute())
    requests = [Request(i, 0, 10, 20) for i in range(2)]
    return simulate(requests, served, cost or OneMillisecond(), 64, fast_forward=fast_forward, marks_ps=marks_ps)


def priced(prompt_ps, decode=None):
    class Odd(OneMillisecond):
        def iteration(self, work):
            return prompt_ps

        def decode(self, work):
            return Affine(prompt_ps, 0, 1) if decode is None else decode

    return Odd()


@pytest.mark.parametrize("price", [1e9, 0, -5, True, None])
def test_a_price_is_a_whole_number_above_zero(price):
    with pytest.raises(PlugInError, match="Odd says that an iteration takes"):
        serve(cost=priced(price))


@pytest.mark.parametrize("prices", [Affine(MS, -1, 5), Affine(MS, 0.5, 5), Affine(MS, 0, 0), Affine(0, 1, UNBOUNDED)])
def test_the_prices_of_a_span_neither_fall_nor_end_before_they_begin(prices):
    with pytest.raises(PlugInError, match="Odd says that an iteration takes"):
        serve(cost=priced(MS, prices))


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
def test_usage_adds_up_to_the_pool(wrong):
    class Miscounting(Paged):
        def usage(self):
            return super().usage()._replace(**WRONG_USAGE[wrong])

    said = r"Miscounting(| miscounts its slots| counts parts of slots): "
    with pytest.raises(PlugInError, match=said):
        serve(Miscounting)


def test_a_footprint_goes_with_usage():
    class Boasting(Paged):
        def footprint(self, seq):
            return Fixed(1000)

    with pytest.raises(PlugInError, match=r"Boasting: usage\(\) does not go with its tables or footprints"):
        serve(Boasting)


def test_a_table_goes_with_usage():
    class Sprawling(Paged):
        def table(self, seq):
            return [Extent(0, 256)]

    with pytest.raises(PlugInError, match=r"Sprawling: usage\(\) does not go with its tables or footprints"):
        serve(Sprawling, fast_forward=False)


def test_footprints_are_given_for_all_or_for_none():
    class Silent(Paged):
        def footprint(self, seq):
            return None

    with pytest.raises(PlugInError, match="Silent has no footprint"):
        serve(Silent)


def test_a_scheduler_loses_no_request():
    class Forgetful(SeparatePrefill):
        def plan(self):
            plan = super().plan()
            self.residents.waiting.clear()
            return plan

    class OneByOne(Forgetful):
        def __init__(self, *arguments, **limits):
            super().__init__(*arguments, **{**limits, "max_num_seqs": 1})

    with pytest.raises(PlugInError, match="OneByOne lost a request, or has one twice: 2 arrived, 0 are finished"):
        serve(scheduler=OneByOne)


def test_a_promise_is_kept():
    class Promising(Paged):
        def horizon(self, batch):
            return 1000

    class Fast(OneMillisecond):
        def decode(self, work):
            return Affine(MS, 0, UNBOUNDED)

    requests = [Request(i, 0, 100, 120) for i in range(2)]
    scheduler = scheduler_of(SeparatePrefill, Promising(PoolSpec(256, 256), block_size=4), Recompute())
    with pytest.raises(PlugInError, match=r"Promising promised \d+ more steps by horizon\(\) and then answered"):
        simulate(requests, scheduler, Fast(), 256)


@pytest.mark.parametrize("decode", [Affine(MS, 1, UNBOUNDED), Affine(MS + 1, 0, UNBOUNDED)])
def test_a_span_is_priced_as_its_steps(decode):
    with pytest.raises(PlugInError, match=r"Odd says \[\d+, \d+\] ps by decode\(\), \[\d+, \d+\] ps by iteration\(\)"):
        serve(cost=priced(MS, decode))


def test_a_price_by_what_is_read_and_by_the_longest_grows_by_a_token_a_sequence():
    class ByContext(OneMillisecond):
        def iteration(self, work):
            return MS + 1000 * work.decode_context + work.decode_longest

        def decode(self, work):
            return Affine(self.iteration(work), 1000 * work.decode_seqs + 1, UNBOUNDED)

    fast, slow = serve(cost=ByContext()), serve(cost=ByContext(), fast_forward=False)
    assert (fast.end_ps, fast.totals) == (slow.end_ps, slow.totals)


@pytest.mark.parametrize("slots", [0, 4, 1000])
def test_what_a_span_took_is_what_it_says(slots):
    class Silent(Paged):
        def extend(self, batch, num_tokens):
            answer = super().extend(batch, num_tokens)
            return answer if num_tokens == 1 else answer._replace(growth=Growth(slots))

    with pytest.raises(PlugInError, match=rf"Silent took \d+ slots in several steps, and says {slots} by Grant.growth"):
        serve(Silent, cost=FastMillisecond(), marks_ps=[12 * MS])


def test_a_request_that_is_served_twice_is_noticed():
    class Doubling(SeparatePrefill):
        def add(self, request):
            group = super().add(request)
            self.residents.waiting.append(group)
            return group

    class OneByOne(Doubling):
        def __init__(self, *arguments, **limits):
            super().__init__(*arguments, **{**limits, "max_num_seqs": 1})

    with pytest.raises(PlugInError, match="OneByOne lost a request, or has one twice"):
        serve(scheduler=OneByOne)


def test_only_who_says_so_drops_tokens():
    class Dropping(Paged):
        def stored(self, num_tokens):
            return min(num_tokens, 8)

    with pytest.raises(PlugInError, match="Dropping keeps 8 of 64 tokens, but does not declare drops_tokens"):
        serve(Dropping)
