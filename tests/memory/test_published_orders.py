"""Eviction orders with a published name find what libCacheSim's implementation finds, hit for hit,
on traces of single blocks. The numbers are libcachesim 0.3.5's; with the package installed the test
runs it.
"""

from functools import partial
from random import Random

import pytest

from testbed.memory.prefix_cache.eviction.frequencies import Frequencies
from testbed.memory.prefix_cache.eviction.lirs import Lirs
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.lru_k import LruK
from testbed.memory.prefix_cache.eviction.s3_fifo import S3Fifo
from testbed.memory.prefix_cache.eviction.sieve import Sieve
from testbed.memory.prefix_cache.eviction.two_queues import TwoQueues
from testbed.memory.prefix_cache.eviction.w_tiny_lfu import WTinyLfu
from testbed.memory.prefix_cache.replay import Prompt, replay

SIZES = (20, 50, 200)
ORDERS = {"LRU": Lru, "Sieve": Sieve, "S3FIFO": S3Fifo, "TwoQ": TwoQueues, "LRUK": LruK}
NUM_ACCESSES = 8000


def skewed():
    """Accesses to 1,000 blocks, the k-th about 1/k times as often as the first."""
    random = Random(0)
    weights = [1 / rank for rank in range(1, 1001)]
    return random.choices(range(1000), weights, k=NUM_ACCESSES)


def scanned():
    """Half of the accesses go to 150 blocks, the others read a long file again and again."""
    random = Random(1)
    return [
        random.randrange(150) if random.random() < 0.5 else 10_000 + place % 2000
        for place in range(NUM_ACCESSES)
    ]


TRACES = {"skewed": skewed, "scanned": scanned}
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


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("name", ORDERS)
def test_hits_equal_those_of_the_published_implementation(name, trace):
    accesses = TRACES[trace]()
    found = tuple(sum(hits_of(ORDERS[name], accesses, size)) for size in SIZES)
    assert found == HITS[name, trace]


@pytest.mark.parametrize("name", ORDERS)
def test_each_hit_equals_the_installed_implementation(name):
    libcachesim = pytest.importorskip("libcachesim", reason="needs the package libcachesim")
    for make in TRACES.values():
        accesses = make()
        for size in SIZES:
            cache = getattr(libcachesim, name)(size)
            theirs = []
            for time, block in enumerate(accesses):
                request = libcachesim.Request()
                request.obj_id, request.obj_size, request.clock_time = block + 1, 1, time
                theirs.append(int(cache.get(request)))
            assert hits_of(ORDERS[name], accesses, size) == theirs


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
