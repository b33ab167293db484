"""LMCache in vLLM's server: what its connector and local CPU cache of release 0.5.6 answer on the
same requests, and runs that are equal step by step and many steps at once.
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
from testbed.memory.offloading.chunk_lru import ChunkLru
from testbed.memory.offloading.lmcache import LMCache
from testbed.memory.policy import PoolSpec, Tier
from testbed.memory.served import Drafts
from testbed.sched.preemption import Recompute
from testbed.sched.vllm_v1 import VllmV1

SIZE, CHUNK = 16, 32


def policy_of(num_blocks, num_chunks, **options):
    pool = PoolSpec(num_blocks * SIZE, 4096, (Tier("dram", num_chunks * CHUNK),))
    return LMCache(pool, SIZE, release=RELEASE, **{"chunk_size": CHUNK, **options})


class Server:
    """A scheduler, plan by plan."""

    def __init__(self, policy, budget=10_000):
        limits = {**LIMITS, **VLLM, "max_num_batched_tokens": budget, "max_num_seqs": 4}
        self.policy = policy
        self.driver = ManualDriver(VllmV1(policy, Recompute(), **limits))
        self.num_requests = 0

    def add(self, ids, output_len=1):
        ids = tuple(ids)
        request = Request(self.num_requests, 0, len(ids), output_len, prompt_ids=ids)
        self.num_requests += 1
        return self.driver.add(request)

    def plan(self):
        """The next plan; its prompt tokens by request."""
        plan, _ = self.driver.step()
        self.policy.check()
        return {chunk.group.request_id: chunk.new for chunk in plan.chunks}

    def serve(self, ids, output_len=1):
        """One request alone, until it has ended; its computed prompt tokens."""
        group, computed = self.add(ids, output_len), 0
        while self.driver.state.find(group.request_id) is not None:
            computed += sum(self.plan().values())
        self.plan()
        return computed

    def count(self, name):
        return self.policy.counters()[name]


def prompt(story, num_tokens):
    return range(10_000 * story, 10_000 * story + num_tokens)


def test_the_beginning_is_evicted_first_until_it_is_looked_up():
    """LMCache: of chunks 0 to 3 in a cache of four, two more evict 0 and 1; after a lookup of all,
    3 and 2.
    """
    for is_looked_up, left in ((False, [2, 3]), (True, [0, 1])):
        cache, keys = ChunkLru("dram", 4, CHUNK), [(i, i) for i in range(6)]
        cache.store(keys[:4])
        if is_looked_up:
            cache.unpin(cache.look_up(keys[:4]))
        assert [i for i, _ in cache.store(keys[4:])] == [0, 1]
        assert [i for i in range(4) if keys[i] in cache.chunks] == left
        cache.check()


def test_a_chunk_that_is_there_takes_room_when_it_is_stored_again():
    """LMCache allocates before it looks: the oldest chunk goes, and its room is free then."""
    cache, keys = ChunkLru("dram", 2, CHUNK), [(0, 0), (1, 1)]
    cache.store(keys)
    assert cache.store(keys[1:]) == []
    assert list(cache.chunks) == keys[1:]
    assert cache.evicted == 1


def test_what_a_lookup_has_found_is_not_evicted():
    cache, keys = ChunkLru("dram", 2, CHUNK), [(i, i) for i in range(4)]
    cache.store(keys[:2])
    assert cache.look_up(keys[:1]) == keys[:1]
    assert cache.store(keys[2:]) == [(0, 1)]
    assert keys[0] in cache.chunks


def test_whole_chunks_are_stored_and_loaded_in_the_plan_that_computes():
    served = Server(policy_of(8, 40))
    assert served.serve(prompt(1, 100)) == 100
    assert served.count("stored_tokens") == 96
    served.serve(prompt(2, 120))
    assert served.add(prompt(1, 100))
    assert served.plan() == {2: 4}
    assert served.count("loaded_tokens") == 96


def test_one_token_of_a_prompt_that_is_found_whole_is_computed():
    served = Server(policy_of(8, 40))
    served.serve(prompt(1, 96))
    served.serve(prompt(2, 120))
    assert served.serve(prompt(1, 96)) == 1


def test_a_load_is_behind_what_the_device_has():
    served = Server(policy_of(8, 40))
    served.serve(prompt(1, 96))
    served.serve(prompt(2, 64))  # evicts the end of the first
    before = served.count("loaded_tokens")
    served.serve(prompt(1, 97))
    assert 0 < served.count("loaded_tokens") - before < 96


def test_fewer_than_min_retrieve_tokens_are_computed():
    served = Server(policy_of(8, 40, min_retrieve_tokens=97))
    served.serve(prompt(1, 100))
    served.serve(prompt(2, 120))
    assert served.serve(prompt(1, 100)) == 100
    assert served.count("stored_tokens") == 192  # what was found is not stored again


@pytest.mark.parametrize(("saves", "stored"), [(False, 64), (True, 128)])
def test_answers_are_stored_where_the_option_says_so(saves, stored):
    served = Server(policy_of(40, 40, save_decode_cache=saves))
    served.serve(prompt(1, 90), output_len=41)
    assert served.count("stored_tokens") == stored


def test_a_chunk_of_one_token_ends_the_stores_of_its_request():
    """LMCache takes it for a decode: the last chunk of 96 tokens is complete, and not stored."""
    served = Server(policy_of(40, 40), budget=95)
    served.serve(prompt(1, 96))
    assert served.count("stored_tokens") == 64


def test_a_chunk_is_stored_as_soon_as_it_is_full():
    """Of 96 tokens in plans of 64 and 32 the second plan stores the third chunk."""
    served = Server(policy_of(40, 40), budget=64)
    served.add(prompt(1, 96))
    stored = [served.plan() and served.count("stored_tokens") for _ in range(2)]
    assert stored == [64, 96]


def test_chunks_that_are_found_but_not_loaded_are_not_stored_again():
    """The cache is full: to store one of them again would evict another."""
    served = Server(policy_of(8, 6, min_retrieve_tokens=97), budget=64)
    for story in (1, 2, 1):
        served.serve(prompt(story, 100))
    assert served.count("loaded_tokens") == served.count("evicted_tokens_below") == 0


def test_what_lmcache_does_not_have_is_refused():
    refuses("one tier below", LMCache, PoolSpec(64, 64))
    pool = PoolSpec(64, 64, (Tier("dram", 512),))
    refuses("drafts are not modelled", LMCache, pool, drafts=Drafts.OF_HIDDEN_STATES)
    refuses("no multiple", LMCache, pool, chunk_size=100)


@pytest.mark.slow
def test_it_keeps_the_contract_in_pools_with_the_one_tier_that_it_takes():
    class Chosen(LMCache):
        def __init__(self, pool, block_size=8):
            super().__init__(pool, block_size, chunk_size=16)

    assert check(Chosen, num_examples=2, num_slots=131, max_len=80) is None


def run(seed, fast_forward):
    random = Random(seed)
    pool, cost = pool_and_cost(random, least_host=32)
    policy = LMCache(
        pool,
        8,
        release=RELEASE,
        chunk_size=random.choice([8, 16, 32]),
        save_decode_cache=random.random() < 0.3,
        min_retrieve_tokens=random.choice([0, 20]),
    )
    scheduler = vllms_scheduler(random, policy, cost)
    return served(requests_of(random, pool.num_slots), scheduler, cost, pool, fast_forward)


@pytest.mark.parametrize("seed", [*range(6), 11])  # 11 finds a whole prompt below
def test_fast_equals_slow(seed, golden):
    assert_fast_equals_slow(partial(run, seed), golden, f"lmcache {seed}")


def test_whole_chunks_are_listed_below():
    served = Server(policy_of(8, 5))
    served.serve(prompt(1, 100))
    assert tokens_below(served.policy, 5 * CHUNK) == (96, 0)
    served.serve(prompt(2, 120))
    assert tokens_below(served.policy, 5 * CHUNK) == (160, 0)


def test_a_load_after_a_preemption_is_no_hit():
    """A hit counts once a request, as vLLM's prefix cache has it; loads count each time."""
    served = Server(policy_of(10, 40))
    served.serve(prompt(1, 96))
    served.serve(prompt(3, 150))
    served.add(prompt(2, 32), output_len=120)
    served.plan()
    group = served.add(prompt(1, 100), output_len=40)
    served.plan()
    assert (served.count("loaded_tokens"), served.count("hit_tokens")) == (96, 96)
    while served.driver.state.running or served.driver.state.waiting:
        served.plan()
    assert group.num_recomputes
    assert served.count("loaded_tokens") > 96
    assert served.count("hit_tokens") == 96


def test_prompts_without_tokens_are_of_their_own():
    served = Server(policy_of(8, 40))
    for number in range(2):
        served.driver.add(Request(number, 0, 100, 1))
        assert served.plan() == {number: 100}
        served.plan()
    assert tokens_below(served.policy, 40 * CHUNK) == (192, 0)
    assert served.count("hit_tokens") == served.count("loaded_tokens") == 0
