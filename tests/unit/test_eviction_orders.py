"""One golden row an eviction order: hits and evictions at four cache sizes on one small trace."""

from random import Random

import pytest

from experiments.commands.cache_speed import branching, cache_speed
from testbed.memory.prefix_cache.eviction.arc import Arc
from testbed.memory.prefix_cache.eviction.belady import Belady
from testbed.memory.prefix_cache.eviction.cost_aware import CostAware
from testbed.memory.prefix_cache.eviction.fifo import Fifo
from testbed.memory.prefix_cache.eviction.lfu import Lfu
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.s3_fifo import S3Fifo
from testbed.memory.prefix_cache.replay import replay

SIZES = (100, 200, 400, 800)
GOLDEN = {
    Lru: [(554, 8851), (1043, 8262), (1802, 7303), (2849, 5856)],
    Fifo: [(483, 8922), (900, 8379), (1422, 7559), (1985, 6454)],
    Lfu: [(1001, 8404), (1922, 7383), (2896, 6209), (3468, 5237)],
    Arc: [(992, 8413), (2088, 7217), (3049, 6056), (3473, 5232)],
    S3Fifo: [(915, 8480), (1928, 7366), (2634, 6466), (3242, 5438)],
    CostAware: [(568, 8837), (1232, 8073), (2359, 6746), (3211, 5494)],
    Belady: [(2009, 7396), (3048, 6257), (3724, 5381), (3811, 4894)],
}


def row(order):
    prompts = branching(400, 20, Random(1))
    results = [replay(prompts, size, order()) for size in SIZES]
    return [(sum(result.hits), result.evictions) for result in results]


@pytest.mark.parametrize("order", GOLDEN)
def test_golden_row(order):
    assert row(order) == GOLDEN[order], f"{order.__name__}: {row(order)}"


def test_benchmark_measures_what_it_says():
    speed = cache_speed(num_blocks=200, num_prompts=100)
    assert speed.lookups > speed.hits > 0
    assert speed.evictions == speed.lookups - speed.hits - 200
    assert speed.per_second > 0
