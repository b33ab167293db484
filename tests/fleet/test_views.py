"""A router sees an engine in the middle of a span as it would step by step, also
at the very time of a boundary, and of a cache that loses blocks meanwhile.

An iteration takes 1 ms.
"""

from functools import partial

import numpy as np
import pytest
from tiny import MS, FastMillisecond

from testbed.core.errors import PlugInError
from testbed.core.request import Request, Rows, Turns
from testbed.engine.arrivals import SessionWorkload
from testbed.engine.engine_parts import EngineParts
from testbed.engine.mode import Mode
from testbed.engine.recorder import Recorder
from testbed.fleet.fleet_rules import FleetRules
from testbed.fleet.fleet_simulation import simulate_fleet
from testbed.fleet.routers.router import Router
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, Tier
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.tiers.tiered_caching import TieredCaching
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute

MAX_LEN = 256


class Planned(Router):
    """Sends each request to the engine that `places` names, and notes what it sees."""

    cache_age_s = None

    def __init__(self, places):
        self.places = places
        self.seen = []

    def look(self, request, view):
        return view.num_requests, view.num_running, view.num_tokens

    def route(self, request, engines):
        seen = [self.look(request, view) for view in engines]
        self.seen.append((request.request_id, seen))
        return engines[self.places.get(request.request_id, 0)]


class CacheReader(Planned):
    """Notes the tokens of each request that the engines have cached."""

    cache_age_s = 0.0

    def look(self, request, view):
        return view.num_cached(request)


def run(requests, router, make_policy, num_engines=2, *, fast_forward):
    """The router's views, and the end of each request (ms), by id."""

    def make_parts(number):
        scheduler = MixedPrefill(
            make_policy(), Recompute(), max_num_batched_tokens=500, max_num_seqs=8
        )
        return EngineParts(scheduler, Transferring(), MAX_LEN)

    recorders = [Recorder() for _ in range(num_engines)]
    simulate_fleet(requests, make_parts, recorders, FleetRules(router), Mode(fast_forward))
    columns = [recorder.requests.columns() for recorder in recorders]
    ends = {
        request_id: time_ps / MS
        for table in columns
        for request_id, time_ps in zip(table["request_id"], table["finish_ps"], strict=True)
    }
    return router.seen, ends


class Transferring(FastMillisecond):
    """A transfer takes as long as an iteration."""

    def transfer(self, moves):
        return MS


def at_a_boundary():
    """Request 0 decodes for 50 ms. Request 1 ends after 5 ms on the other engine, and request 2 is
    its session's next: it comes when both engines have had their turns of that time.
    """
    turns = Turns(np.array([0, 1, 1]), [(), (), (1,)], np.zeros(3), np.zeros(3))
    rows = Rows(np.array([20, 20, 20]), np.array([50, 5, 5]), turns=turns)
    return SessionWorkload(rows, np.zeros(3, np.int64), at_once=2)


@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_router_sees_an_iteration_that_ends_now_once_its_engine_has_had_its_turn(fast_forward):
    router, pool = Planned({0: 0, 1: 1, 2: 1}), PoolSpec(1600, MAX_LEN)
    seen, _ = run(at_a_boundary(), router, partial(Paged, pool), fast_forward=fast_forward)
    request_id, (first, second) = seen[-1]
    assert request_id == 2
    assert first == (1, 1, 20 + 5)
    assert second == (0, 0, 0)


@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_request_that_comes_after_an_engines_turn_waits_for_the_next_boundary(fast_forward):
    router, pool = Planned({0: 0, 1: 1, 2: 0}), PoolSpec(1600, MAX_LEN)
    _, ends = run(at_a_boundary(), router, partial(Paged, pool), fast_forward=fast_forward)
    assert ends == {0: 50, 1: 5, 2: 5 + 1 + 5}  # one iteration has begun at 5 ms without it


POOL = PoolSpec(128, 128, (Tier("dram", 400, 1e9),))
CACHES = {
    "device": partial(PrefixCaching, POOL, block_size=8, watermark=0),
    "tiers": partial(TieredCaching, POOL, block_size=8, watermark=0),
}


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize("name", CACHES)
def test_a_router_learns_of_an_eviction_in_the_iteration_that_needs_the_block(name, fast_forward):
    """16 blocks: request 0 leaves 8 in the cache, its last one first to be evicted. Request 1 takes
    the 8 free ones with its first 64 tokens, and one of the others with every 8th token after.
    """
    first_text, second_text = (tuple(range(start, start + 64)) for start in (0, 100))
    requests = [Request(0, arrival_ps=0, prompt_len=65, output_len=1, prompt_ids=(*first_text, 0))]
    requests.append(
        Request(1, arrival_ps=10 * MS, prompt_len=64, output_len=60, prompt_ids=second_text)
    )
    arrivals_ms = (20, 28, 36, 44)
    for request_id, at_ms in enumerate(arrivals_ms, 2):
        arrival_ps = at_ms * MS + MS // 2
        requests.append(
            Request(
                request_id,
                arrival_ps=arrival_ps,
                prompt_len=65,
                output_len=1,
                prompt_ids=(*first_text, 0),
            )
        )
    places = dict.fromkeys(range(2, 6), 1)  # the other engine has them
    seen, _ = run(requests, CacheReader(places), CACHES[name], fast_forward=fast_forward)
    first_engine = [views[0] for _, views in seen[2:]]
    assert first_engine == [48, 40, 32, 24]


class Peeking(Planned):
    """Its class says what is not true."""

    looks_at_engines = False


@pytest.mark.parametrize("look", [Peeking.look, CacheReader.look])
def test_a_router_that_looks_at_no_engine_is_held_to_it(look):
    router = Peeking({})
    router.look = partial(look, router)
    with pytest.raises(PlugInError, match="Peeking looks at an engine"):
        run(
            [Request(0, arrival_ps=0, prompt_len=1, output_len=1)],
            router,
            CACHES["device"],
            fast_forward=True,
        )
