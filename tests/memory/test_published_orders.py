"""Eviction orders with a published name find what libCacheSim's implementation finds, hit for hit,
on traces of single blocks, or differ by a rule that has a name. The numbers are libcachesim
0.3.5's; with the package installed (and xxhash for W-TinyLFU's counts) the slow tests run it.
"""

from functools import partial
from random import Random

import pytest
from libcachesim_rules import (
    LirsOfLibcachesim,
    WTinyLfuOfLibcachesim,
    gdsf_hits,
    hits_of_cache,
)

from testbed.memory.prefix_cache.eviction.arc import Arc
from testbed.memory.prefix_cache.eviction.belady import Belady
from testbed.memory.prefix_cache.eviction.cost_aware import CostAware
from testbed.memory.prefix_cache.eviction.frequencies import Frequencies
from testbed.memory.prefix_cache.eviction.gdsf import Gdsf
from testbed.memory.prefix_cache.eviction.lirs import Lirs
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.lru_k import LruK
from testbed.memory.prefix_cache.eviction.ranked import Fifo, Lfu
from testbed.memory.prefix_cache.eviction.s3_fifo import S3Fifo
from testbed.memory.prefix_cache.eviction.sieve import Sieve
from testbed.memory.prefix_cache.eviction.two_queues import TwoQueues
from testbed.memory.prefix_cache.eviction.w_tiny_lfu import WTinyLfu
from testbed.memory.prefix_cache.replay import Prompt, replay

SIZES = (20, 50, 200)
ORDERS = {"LRU": Lru, "Sieve": Sieve, "S3FIFO": S3Fifo, "TwoQ": TwoQueues, "LRUK": LruK}
ALL_EQUAL = {**ORDERS, "FIFO": Fifo, "LFU": Lfu, "ARC": Arc, "Belady": Belady}
NUM_ACCESSES, MANY_ACCESSES = 8000, 100_000
LONG_SIZES = (50, 200, 1000)


def skewed(count=NUM_ACCESSES):
    """Accesses to 1,000 blocks, the k-th about 1/k times as often as the first."""
    random = Random(0)
    weights = [1 / rank for rank in range(1, 1001)]
    return random.choices(range(1000), weights, k=count)


def scanned(count=NUM_ACCESSES):
    """Half of the accesses go to 150 blocks, the others read a long file again and again."""
    random = Random(1)
    return [
        random.randrange(150) if random.random() < 0.5 else 10_000 + place % 2000
        for place in range(count)
    ]


def shifting(count=NUM_ACCESSES):
    """The popular of 3,000 blocks change after each 5,000 accesses."""
    random = Random(2)
    weights = [rank**-0.8 for rank in range(1, 3001)]
    drawn = random.choices(range(3000), weights, k=count)
    return [(block + 700 * (place // 5000)) % 3000 for place, block in enumerate(drawn)]


TRACES = {"skewed": skewed, "scanned": scanned}
LONG_TRACES = {**TRACES, "shifting": shifting}
HITS = {  # of libcachesim 0.3.5, by SIZES
    ("LRU", "skewed"): (2452, 3605, 5473),
    ("LRU", "scanned"): (282, 666, 2203),
    ("Sieve", "skewed"): (3468, 4486, 5814),
    ("Sieve", "scanned"): (473, 1299, 3729),
    ("S3FIFO", "skewed"): (3512, 4437, 5817),
    ("S3FIFO", "scanned"): (516, 1222, 3824),
    ("TwoQ", "skewed"): (3255, 4221, 5658),
    ("TwoQ", "scanned"): (442, 1112, 3513),
    ("LRUK", "skewed"): (3605, 4504, 5814),
    ("LRUK", "scanned"): (550, 1313, 3729),
}
LIRS_HITS = {"skewed": (3388, 4363, 5756), "scanned": (533, 1292, 3873)}  # the same


def hits_of(order, trace, size):
    return replay([Prompt((block,), 1) for block in trace], size, order()).hits


@pytest.mark.parametrize(  # every pair of an order, a trace and a size, and if slow all the others
    ("name", "trace", "place"),
    [
        pytest.param(name, trace, place, marks=[pytest.mark.slow] * ((row + column + place) % 2))
        for row, name in enumerate(ORDERS)
        for column, trace in enumerate(TRACES)
        for place in range(len(SIZES))
    ],
)
def test_hits_equal_those_of_the_published_implementation(name, trace, place):
    found = sum(hits_of(ORDERS[name], TRACES[trace](), SIZES[place]))
    assert found == HITS[name, trace][place]


def hits_of_libcachesim(name, accesses, size):
    libcachesim = pytest.importorskip("libcachesim", reason="needs the package libcachesim")
    cache, theirs, next_uses = getattr(libcachesim, name)(size), [], next_uses_of(accesses)
    for time, block in enumerate(accesses):
        request = libcachesim.Request()
        request.obj_id, request.obj_size, request.clock_time = block + 1, 1, time
        request.next_access_vtime = next_uses[time]
        theirs.append(int(cache.get(request)))
    return theirs


def next_uses_of(accesses):
    """For each access the place of the next one to the same block."""
    never, following, places = 2**62, {}, []
    for place in reversed(range(len(accesses))):
        places.append(following.get(accesses[place], never))
        following[accesses[place]] = place
    return places[::-1]


@pytest.mark.slow
@pytest.mark.parametrize("trace", LONG_TRACES)
@pytest.mark.parametrize("name", ALL_EQUAL)
def test_each_hit_of_a_long_trace_equals_the_installed_implementation(name, trace):
    accesses = LONG_TRACES[trace](MANY_ACCESSES)
    for size in LONG_SIZES:
        assert hits_of(ALL_EQUAL[name], accesses, size) == hits_of_libcachesim(name, accesses, size)


def lirs(demotes_at_hits):
    return lambda accesses, size: hits_of_cache(LirsOfLibcachesim(size, demotes_at_hits), accesses)


def gdsf(newcomer_competes):
    return lambda accesses, size: gdsf_hits(accesses, size, newcomer_competes)


def w_tiny_lfu(accesses, size):
    xxhash = pytest.importorskip("xxhash", reason="needs the package xxhash")
    return hits_of_cache(WTinyLfuOfLibcachesim(size, xxhash.xxh64_intdigest), accesses)


NAMED_RULES = {"GDSF": gdsf(True), "LIRS": lirs(True), "WTinyLFU": w_tiny_lfu}
WITHOUT_THEM = [(Gdsf, gdsf(False)), (CostAware, gdsf(False)), (Lirs, lirs(False))]


@pytest.mark.slow
@pytest.mark.parametrize("trace", LONG_TRACES)
@pytest.mark.parametrize("name", NAMED_RULES)
def test_each_hit_of_libcachesim_follows_from_the_rules_that_have_a_name(name, trace):
    accesses = LONG_TRACES[trace](MANY_ACCESSES)
    for size in (200, 1000):  # W-TinyLFU stores nothing below 100
        assert NAMED_RULES[name](accesses, size) == hits_of_libcachesim(name, accesses, size)


@pytest.mark.parametrize(  # every pair of an order, a trace and a size
    ("order", "without", "trace", "size"),
    [
        (*WITHOUT_THEM[row], trace, SIZES[(row + column) % len(SIZES)])
        for row in range(len(WITHOUT_THEM))
        for column, trace in enumerate(LONG_TRACES)
    ],
)
def test_orders_differ_from_libcachesim_by_those_rules_alone(order, without, trace, size):
    accesses = LONG_TRACES[trace]()
    assert hits_of(order, accesses, size) == without(accesses, size)


@pytest.mark.parametrize("trace", TRACES)
def test_lirs_differs_from_libcachesim_by_the_blocks_that_it_evicts_at_hits(trace):
    theirs = LIRS_HITS[trace]
    accesses = TRACES[trace]()
    for size, hits in zip(SIZES, theirs, strict=True):
        assert sum(hits_of(Lirs, accesses, size)) == pytest.approx(hits, rel=0.01)


def test_lirs_keeps_a_part_of_a_loop_that_does_not_fit():
    """Ten times around a loop of 101 blocks with a pool of 100: 99 low blocks stay."""
    loop = [block for _ in range(10) for block in range(101)]
    assert sum(hits_of(Lru, loop, 100)) == 0
    assert sum(hits_of(Lirs, loop, 100)) == 9 * 99


def test_w_tiny_lfu_keeps_blocks_in_use_through_a_scan():
    in_use = list(range(50)) * 5
    scan = list(range(1000, 1500))
    hits = hits_of(WTinyLfu, [*in_use, *scan, *range(50)], 60)
    assert sum(hits[-50:]) == 50
    assert sum(hits_of(Lru, [*in_use, *scan, *range(50)], 60)[-50:]) == 0


def plain_w_tiny_lfu(trace, size, window_size, main_size, protected_size):
    """Hits of lists, the oldest block first."""
    window, probation, protected, uses = [], [], [], Frequencies()
    hits = []
    for block in trace:
        queues = window, probation, protected
        queue = next((queue for queue in queues if block in queue), None)
        hits.append(int(queue is not None))
        if queue is None and sum(map(len, queues)) == size:
            candidate, rival = window[0], [*probation, *protected][0]
            if uses.of(candidate) > uses.of(rival):
                window.remove(candidate)
                probation.append(candidate)
                candidate = rival
            for other in queues:
                other[:] = [kept for kept in other if kept != candidate]
        uses.count(block, 10 * size)
        if queue is not None:
            queue.remove(block)
        (protected if queue in (probation, protected) else window).append(block)
        while len(window) > window_size and len(probation) + len(protected) < main_size:
            probation.append(window.pop(0))
        if len(protected) > protected_size:
            probation.append(protected.pop(0))
    return hits


@pytest.mark.parametrize("trace", TRACES)
def test_w_tiny_lfu_finds_what_plain_lists_find(trace):
    accesses = TRACES[trace]()[:2000]
    order = partial(WTinyLfu, window_share=0.1)
    assert hits_of(order, accesses, 50) == plain_w_tiny_lfu(accesses, 50, 5, 45, 36)
