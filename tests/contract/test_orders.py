"""Every built-in eviction order keeps the contract; a broken one is caught, its clause named and
its calls shown.
"""

import gc
from types import FunctionType, ModuleType

import pytest
from broken_orders import BROKEN

import testbed
from testbed.checks.contract.order_contract import check_order
from testbed.memory.prefix_cache.caching_pool import CachingPool
from testbed.memory.prefix_cache.eviction.arc import Arc
from testbed.memory.prefix_cache.eviction.belady import Belady
from testbed.memory.prefix_cache.eviction.by_session import BySession
from testbed.memory.prefix_cache.eviction.cost_aware import CostAware
from testbed.memory.prefix_cache.eviction.gdsf import Gdsf
from testbed.memory.prefix_cache.eviction.lirs import Lirs
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.lru_k import LruK
from testbed.memory.prefix_cache.eviction.ranked import Fifo, Lfu
from testbed.memory.prefix_cache.eviction.s3_fifo import S3Fifo
from testbed.memory.prefix_cache.eviction.sieve import Sieve
from testbed.memory.prefix_cache.eviction.two_queues import TwoQueues
from testbed.memory.prefix_cache.eviction.w_tiny_lfu import WTinyLfu
from testbed.memory.prefix_cache.prefix_index import Node
from testbed.memory.prefix_cache.replay import serve

ORDERS = [Lru, Fifo, Lfu, Arc, BySession, CostAware, Belady]
ORDERS += [Sieve, S3Fifo, TwoQueues, Gdsf, LruK, Lirs, WTinyLfu]


@pytest.mark.parametrize("kind", ORDERS)
def test_order_keeps_the_contract(kind):
    broken = check_order(kind, 50)
    assert broken is None, f"{broken} {broken.calls}"


@pytest.mark.parametrize("kind", [order for order in ORDERS if order is not Belady])
def test_an_order_forgets_the_blocks_that_it_has_evicted(kind):
    """2,000 blocks go through a pool of 20."""
    pool = CachingPool(20, kind())
    for number in range(2000):
        serve(pool, (number,))
    assert pool.evictions == 1980
    assert 20 <= num_nodes_within(pool) < 200


def num_nodes_within(whole):
    """The blocks to which references lead from an object, other than by modules and classes."""
    seen, todo = {}, [whole]
    while todo:
        thing = todo.pop()
        if id(thing) not in seen and not isinstance(thing, type | ModuleType | FunctionType):
            seen[id(thing)] = thing
            todo += gc.get_referents(thing)
    return sum(isinstance(thing, Node) for thing in seen.values())


def test_the_check_keeps_a_shipped_order():
    assert testbed.check(Lru, num_examples=10) is None


def test_parameters_are_passed_to_the_order():
    assert testbed.check(CostAware, attention_share=0.5, num_examples=10) is None


@pytest.mark.parametrize("name", BROKEN)
def test_the_broken_clause_is_named(name):
    kind, clause = BROKEN[name]
    broken = testbed.check(kind)
    assert broken is not None, "no clause was broken"
    assert broken.clause == clause, str(broken)


def test_the_shortest_calls_are_shown():
    broken = testbed.check(BROKEN["LosesTheBeginning"][0])
    assert broken.calls == ["add(block 1, block 0)", "victims(2)"]
    broken = testbed.check(BROKEN["CountsHitsItself"][0])
    assert len(broken.calls) == 1
