"""Prefix caching by blocks for SGLang's scheduler: pins hold what a request would find, and count
as one use of it.
"""

from functools import partial

import pytest
from manual_driver import admit_and_prefill, release, sequence

from testbed.checks.checking import LIMITS
from testbed.checks.contract.search import POOLS, check_policy
from testbed.checks.fast_and_slow import differs
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.ranked import Fifo, Lfu
from testbed.memory.prefix_cache.eviction.s3_fifo import S3Fifo
from testbed.memory.prefix_cache.pinned_caching import PinnedCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.sglang import SGLang
from testbed.sched.sglang_overlap import OverlappedSGLang

TEXT = tuple(range(24))
ORDERS = (Lru, Lfu, S3Fifo)


def policy(order=Lru, num_blocks=8):
    return PinnedCaching(PoolSpec(4 * num_blocks, 64), 4, eviction=order())


def prompt(seq_id, ids):
    return sequence(seq_id, len(ids), prompt_ids=ids, tokens_per_id=1)


def serve(caching, seq):
    (grant,) = admit_and_prefill(caching, [seq], seq.prompt_len)
    release(caching, seq)
    return grant.num_cached


def test_what_is_pinned_is_not_evicted():
    caching = policy()
    serve(caching, prompt(0, TEXT))
    hit = caching.match(prompt(1, (*TEXT[:12], 99)), 12)
    caching.pin(hit)
    caching.make_free(32)
    caching.check()
    assert (caching.usage().held, caching.usage().free) == (12, 20)
    caching.unpin(hit)
    assert (caching.usage().live, caching.usage().cached) == (0, 12)
    caching.make_free(32)
    assert caching.usage().cached == 0


@pytest.mark.parametrize("order", ORDERS)
def test_a_refused_request_is_not_counted_and_an_admitted_one_once(order):
    caching, plain = policy(order), PrefixCaching(PoolSpec(32, 64), 4, 0, order())
    for memory in (caching, plain):
        serve(memory, prompt(0, TEXT[:12]))
    asked = prompt(1, TEXT[:13])
    refused = caching.match(asked, 12)
    caching.pin(refused)
    caching.unpin(refused)
    hit = caching.match(asked, 12)
    caching.pin(hit)
    (grant,) = caching.admit([asked], 13, hit)
    caching.unpin(hit)
    caching.check()
    plain_hit = plain.lookup(asked)
    plain.admit([asked], 13, plain_hit)
    assert grant.num_cached == 12
    assert [node.hits for node in hit.nodes] == [node.hits for node in plain_hit.nodes] == [1] * 3
    assert caching.usage() == plain.usage()


def test_only_lru_renews_what_a_waiting_request_would_find():
    left = {}
    for order in (Lru, Fifo):
        caching = policy(order, num_blocks=4)
        serve(caching, prompt(0, TEXT[:8]))
        serve(caching, prompt(1, TEXT[8:16]))
        waiting = prompt(2, TEXT[:9])
        caching.refresh(waiting, 8)
        caching.make_free(8)
        left[order] = caching.match(waiting, 8).num_cached(9)
    assert left == {Lru: 8, Fifo: 0}


def test_a_walk_goes_first_where_most_hits_end():
    caching = policy()
    serve(caching, prompt(0, TEXT[:12]))
    serve(caching, prompt(1, (*TEXT[:4], *TEXT[16:24])))
    asked = [(*TEXT[:8], 99), (*TEXT[:4], *TEXT[16:21]), (*TEXT[:4], *TEXT[16:24], 99)]
    hits = [caching.match(prompt(number + 2, ids), 99) for number, ids in enumerate(asked)]
    assert caching.depth_first(hits) == [2, 1, 0]
    assert caching.depth_first([]) == []


@pytest.mark.parametrize("num_examples", [2, pytest.param(200, marks=pytest.mark.slow)])
def test_the_contract_is_kept(num_examples):
    make = partial(PinnedCaching, block_size=4)
    assert check_policy(make, POOLS[:1], num_examples) is None


@pytest.mark.parametrize("order", ORDERS)
def test_sglang_s_schedulers_serve_it_fast_and_slowly_alike(order):
    def make(pool):
        return PinnedCaching(pool, 8, eviction=order())

    limits = {"max_running_requests": LIMITS["max_num_seqs"]}
    assert differs(make, PoolSpec(160, 128), (SGLang, OverlappedSGLang), limits) is None


def test_other_schedulers_serve_it_as_prefix_caching():
    from testbed import simulate

    words = ("trace=chat_histories", "model=llama-3-8b", "policy.watermark=0.01")
    runs = [
        simulate(f"policy={name}", *words, rate=5, duration_s=4)
        for name in ("prefix_caching", "pinned_caching")
    ]
    assert runs[0].summary["counters"] == runs[1].summary["counters"]
    assert runs[0].summary["e2e_s"] == runs[1].summary["e2e_s"]
