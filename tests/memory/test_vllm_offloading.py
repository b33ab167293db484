"""vLLM's offloading: what its scheduler and CPU cache of release 0.33 answer on the same requests,
and runs that are equal step by step and many steps at once.
"""

from functools import partial
from random import Random

import pytest
from manual_driver import LIMITS, ManualDriver
from refusals import refuses
from shared_beginnings import (
    RELEASE,
    VLLM,
    assert_fast_equals_slow,
    pool_and_cost,
    requests_of,
    served,
    vllms_scheduler,
)
from tier_slots import tokens_below

from testbed.checks.checking import check
from testbed.core.request import Request
from testbed.memory.offloading.request_lru import Request as Holder
from testbed.memory.offloading.request_lru import RequestLru
from testbed.memory.offloading.vllm import VllmOffloading
from testbed.memory.policy import PoolSpec, Tier
from testbed.memory.served import Drafts
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.preemption import Recompute
from testbed.sched.vllm_v1 import VllmV1

SIZE = 16


def policy_of(num_blocks, host_blocks, size=SIZE, **options):
    pool = PoolSpec(num_blocks * size, 4096, (Tier("dram", host_blocks * size),))
    return VllmOffloading(pool, size, release=RELEASE, **options)


class Server:
    """A scheduler, plan by plan; a transfer lands `delay` plans after the one that begins it."""

    def __init__(self, policy, delay=0, budget=10_000):
        limits = {**LIMITS, **VLLM, "max_num_batched_tokens": budget, "max_num_seqs": 4}
        self.policy, self.delay, self.due = policy, delay, []
        self.driver = ManualDriver(VllmV1(policy, Recompute(), **limits))
        self.num_requests = self.num_plans = 0

    def add(self, ids, output_len=1):
        ids = tuple(ids)
        request = Request(self.num_requests, 0, len(ids), output_len, prompt_ids=ids)
        self.num_requests += 1
        return self.driver.add(request)

    def plan(self):
        """The next plan; its new tokens by request."""
        for due, move_id in list(self.due):
            if due <= self.num_plans:
                self.policy.landed(move_id)
                self.due.remove((due, move_id))
        plan, _ = self.driver.step()
        self.num_plans += 1
        transfers = [transfer for ops in plan.ops for transfer in ops.background]
        self.due += [(self.num_plans + self.delay, number) for number, _ in transfers]
        self.policy.check()
        return {chunk.group.request_id: chunk.new for chunk in plan.chunks}

    def serve(self, ids, output_len=1):
        """One request alone, until it has ended and all has landed; its computed prompt tokens, and
        the plans before its first.
        """
        group, computed, waited = self.add(ids, output_len), 0, 0
        while self.driver.state.find(group.request_id) is not None:
            new = self.plan()
            computed += sum(new.values())
            waited += not computed
        while self.due:
            self.plan()
        self.plan()
        return computed, waited

    def count(self, name):
        return self.policy.counters()[name]


def prompt(story, num_blocks, more=0):
    return range(10_000 * story, 10_000 * story + num_blocks * SIZE + more)


@pytest.mark.parametrize("budget", [10_000, 160])
def test_the_beginning_of_a_prompt_outlives_its_end(budget):
    """vLLM: the cache of 100 blocks has blocks 0 to 39 of the first prompt, whatever the chunks."""
    served = Server(policy_of(60, 100), budget=budget)
    served.serve(prompt(1, 50))
    served.serve(prompt(2, 60))
    assert served.serve(prompt(1, 50)) == (160, 1)
    assert served.count("loaded_blocks") == 40


def test_a_prompt_larger_than_the_cache_keeps_what_its_last_chunks_left():
    """vLLM: 100 blocks in steps of 20 leave 0 to 39 and 80 to 99 in a cache of 60."""
    cache, request, keys = RequestLru("dram", 60, 1), Holder(), [(i, i) for i in range(100)]
    for first in range(0, 100, 20):
        part = keys[first : first + 20]
        assert len(cache.store(part, first, request)) == 20
        cache.stored(part)
        cache.check()
    assert [i for i, key in enumerate(keys) if cache.has(key)] == [*range(40), *range(80, 100)]
    cache.finished(request)
    assert cache.find(keys) == (40, False)


def test_what_is_read_is_not_evicted_and_keeps_its_rank():
    cache, first, second = RequestLru("dram", 4, 1), Holder(), Holder()
    keys = [(i, i) for i in range(8)]
    cache.store(keys[:2], 0, first)
    cache.stored(keys[:2])
    cache.finished(first)
    cache.read(keys[:2], 0, second)
    assert cache.store(keys[4:7], 0, Holder()) is None
    cache.end_read(keys[:2])
    assert cache.store(keys[4:7], 0, Holder()) is not None
    assert [cache.has(key) for key in keys[:2]] == [True, False]
    assert cache.find(keys[4:7]) == (3, True)
    cache.check()


def test_a_prompt_of_whole_blocks_waits_for_a_block_that_the_device_has():
    """vLLM: it waits for as many steps as the transfer takes, by one token less it does not."""
    for delay in (0, 10):
        for more, waits in ((0, True), (1, False)):
            served = Server(policy_of(40, 40), delay)
            served.serve(prompt(1, 10, 1))
            computed, waited = served.serve(prompt(1, 10, more))
            assert computed == 1
            assert waited == (1 + delay if waits else 0)


def test_a_whole_prompt_below_computes_one_token():
    served = Server(policy_of(12, 40))
    served.serve(prompt(1, 10))
    served.serve(prompt(2, 12))
    assert served.serve(prompt(1, 10)) == (1, 1)
    assert served.count("loaded_blocks") == 10


def test_a_request_waits_for_blocks_that_are_being_stored_and_lets_others_pass():
    served = Server(policy_of(12, 40), delay=5)
    first = served.add(prompt(1, 10, 1))
    assert served.plan() == {0: 161}
    assert served.driver.state.find(first.request.request_id) is None
    served.add(prompt(2, 11))  # takes the blocks of the first, whose store the iteration awaits
    served.add(prompt(1, 10))
    assert served.plan() == {1: 176}


def test_a_loaded_request_waits_for_a_place_among_those_that_run():
    """Four run when its load lands, which is the most; it begins when they have ended."""
    served = Server(policy_of(30, 60), delay=3)
    served.serve(prompt(1, 10))
    served.serve(prompt(2, 30))
    loading = served.add(prompt(1, 10)).request.request_id
    assert served.plan() == {}
    others = [served.add(prompt(story, 1), output_len=9) for story in (3, 4, 5, 6)]
    begun = [served.plan() for _ in range(12)]
    assert set(begun[0]) == {group.request_id for group in others}
    assert [loading in new for new in begun] == [number == 9 for number in range(12)]


def test_two_requests_load_equal_blocks_once():
    """The second waits, and then loads the last block, which the device has."""
    served = Server(policy_of(30, 60), delay=3)
    served.serve(prompt(1, 10))
    served.serve(prompt(2, 30))
    served.add(prompt(1, 10))
    served.add(prompt(1, 10))
    served.plan()
    assert served.count("loaded_blocks") == 10
    served.serve(prompt(3, 1))
    assert served.count("loaded_blocks") == 11


def test_what_the_tier_lost_is_stored_again():
    """vLLM stores 11 blocks if the device has 10 of them."""
    served = Server(policy_of(100, 20))
    for story in (1, 2, 3, 4):
        served.serve(prompt(story, 10))
    before = served.count("stored_blocks")
    assert served.serve(prompt(1, 11))[0] == 16
    assert served.count("stored_blocks") - before == 11


@pytest.mark.parametrize(("prompt_only", "stored"), [(True, 10), (False, 12)])
def test_answers_are_stored_where_the_option_says_so(prompt_only, stored):
    served = Server(policy_of(40, 40, offload_prompt_only=prompt_only))
    served.serve(prompt(1, 10), output_len=41)
    assert served.count("stored_blocks") == stored


def test_a_cache_without_room_stores_nothing_and_is_offered_the_same_again():
    served = Server(policy_of(40, 8), delay=2)
    served.serve(prompt(1, 10), output_len=5)
    assert served.count("stored_blocks") == 0
    served.serve(prompt(2, 8))
    assert served.count("stored_blocks") == 8


def test_nothing_of_a_cancelled_request_stays_while_it_loads():
    served = Server(policy_of(12, 40), delay=5)
    served.serve(prompt(1, 10))
    served.serve(prompt(2, 12))
    group = served.add(prompt(1, 10))
    assert served.plan() == {}
    assert served.policy.usage().held == 160
    served.driver.scheduler.cancel(group)
    assert served.policy.usage().held == 0
    for _ in range(8):
        served.plan()
    served.serve(prompt(3, 12))


def test_what_vllm_does_not_have_is_refused():
    refuses("one tier below", VllmOffloading, PoolSpec(64, 64))
    pool = PoolSpec(64, 64, (Tier("dram", 64),))
    refuses("drafts are not modelled", VllmOffloading, pool, drafts=Drafts.OF_HIDDEN_STATES)


def test_a_scheduler_that_loads_no_slots_is_refused():
    refuses("loads into slots", ChunkedPrefill, policy_of(8, 8), Recompute(), **LIMITS)


@pytest.mark.slow
def test_it_keeps_the_contract_in_pools_with_the_one_tier_that_it_takes():
    """Its short runs are served by vLLM's scheduler, and load."""
    assert check(VllmOffloading, num_examples=2, num_slots=131, max_len=80) is None


def run(seed, fast_forward):
    random = Random(seed)
    pool, cost = pool_and_cost(random)
    policy = VllmOffloading(pool, 8, release=RELEASE, offload_prompt_only=random.random() < 0.7)
    scheduler = vllms_scheduler(random, policy, cost)
    return served(requests_of(random, pool.num_slots), scheduler, cost, pool, fast_forward)


@pytest.mark.parametrize("seed", [*range(6), 24])  # 24 loads beside prompts in prefill
def test_fast_equals_slow(seed, golden):
    assert_fast_equals_slow(partial(run, seed), golden, f"vllm_offloading {seed}")


def test_blocks_below_are_listed_while_they_are_written_and_then():
    served = Server(policy_of(60, 100), delay=3)
    served.add(prompt(1, 4), output_len=20)
    served.plan()
    assert tokens_below(served.policy, 100 * SIZE) == (0, 4 * SIZE)
    while served.due:
        served.plan()
    assert tokens_below(served.policy, 100 * SIZE) == (4 * SIZE, 0)


def test_prompts_without_tokens_are_of_their_own():
    served = Server(policy_of(8, 100))
    for number in range(2):
        served.driver.add(Request(number, 0, 100, 1))
        assert served.plan() == {number: 100}
        served.plan()
    assert (served.count("stored_blocks"), served.count("loaded_blocks")) == (12, 0)


def test_a_cache_keeps_its_order_when_it_forgets_what_is_out_of_date():
    """Of two blocks that 300 requests have read, that of the last one outlives the other."""
    cache, keys = RequestLru("dram", 3, 1), [(i, i) for i in range(4)]
    for number in range(300):
        request, key = Holder(), keys[number % 3]
        cache.stored([key] if cache.store([key], 0, request) else [])
        cache.finished(request)
        cache.check()
    assert len(cache._queue) < 80
    for left in (keys[2], keys[0]):  # of 297, 298 and 299 the oldest is evicted
        cache.stored(keys[3:] if cache.store(keys[3:], 0, Holder()) else [])
        assert cache.has(left) == (left == keys[2])
