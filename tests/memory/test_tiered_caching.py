"""Prefix caching over tiers: the contract with moves in the background, what is found, and runs
that wait for loads.
"""

from dataclasses import replace
from functools import partial
from random import Random

import pytest
from histories import keeps_the_contract
from manual_driver import admit_and_prefill, extend, release, sequence
from refusals import refuses
from same_runs import FEW_AND_MANY, assert_same
from tier_slots import tokens_below
from tiny import MODEL, analytic, server

from testbed.checks.contract.search import POOLS
from testbed.checks.fast_and_slow import LIMITS, differs
from testbed.core.errors import PlugInError
from testbed.core.request import Request
from testbed.core.sequence import passing_batch
from testbed.core.slots import Refusal
from testbed.core.specs import TierSpec
from testbed.engine.simulation import simulate
from testbed.memory.policy import PoolSpec, Tier
from testbed.memory.prefix_cache.eviction.arc import Arc
from testbed.memory.prefix_cache.eviction.by_session import BySession
from testbed.memory.prefix_cache.eviction.lirs import Lirs
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.s3_fifo import S3Fifo
from testbed.memory.prefix_cache.eviction.sieve import Sieve
from testbed.memory.prefix_cache.eviction.two_queues import TwoQueues
from testbed.memory.prefix_cache.eviction.w_tiny_lfu import WTinyLfu
from testbed.memory.prefix_cache.prefix_index import TOMBSTONE
from testbed.memory.tiers.load_rules import LoadAlways, LoadIfFaster, LoadNever
from testbed.memory.tiers.pinned_pool import PinnedPool
from testbed.memory.tiers.store_rules import BeforeEviction, OnReuse, WriteBack, WriteThrough
from testbed.memory.tiers.tiered_caching import TieredCaching, chain_to
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.preemption import Recompute

POLICIES = {
    "write through": partial(TieredCaching, block_size=8),
    "on reuse": lambda pool: TieredCaching(pool, block_size=8, store=OnReuse()),
    "write back": lambda pool: TieredCaching(pool, block_size=8, store=WriteBack()),
    "before eviction": lambda pool: TieredCaching(pool, block_size=8, store=BeforeEviction(4)),
    "exclusive": partial(TieredCaching, block_size=8, exclusive=True),
    "exclusive, lazy": lambda pool: TieredCaching(
        pool, block_size=8, exclusive=True, store=BeforeEviction(4)
    ),
    "by session": lambda pool: TieredCaching(pool, block_size=8, eviction=BySession()),
    "another order": lambda pool: TieredCaching(
        pool, block_size=8, eviction=Arc(), store=WriteBack()
    ),
}


@pytest.mark.parametrize("num_examples", FEW_AND_MANY)
@pytest.mark.parametrize("name", POLICIES)
def test_tiered_caches_keep_the_contract_with_transfers_that_land_in_any_order(
    name, num_examples, golden
):
    keeps_the_contract(golden, name, POLICIES[name], num_examples=num_examples)


@pytest.mark.usefixtures("few_requests")
@pytest.mark.parametrize(
    ("name", "prefetch"), [*((name, 0) for name in POLICIES), ("exclusive", 3), ("on reuse", 3)]
)
def test_fast_equals_slow_with_transfers(name, prefetch):
    limits = {**LIMITS, "prefetch": prefetch}
    assert differs(POLICIES[name], POOLS[1], [ChunkedPrefill], limits) is None


def prompt(seq_id, ids):
    return sequence(seq_id, len(ids), prompt_ids=tuple(ids))


def computed(policy, seq_id, ids):
    """One prompt, which has been computed, and its grant."""
    seq = prompt(seq_id, ids)
    (grant,) = admit_and_prefill(policy, [seq], len(ids))
    return seq, grant


def served(policy, seq_id, ids):
    """One prompt comes, is computed and leaves; all transfers land. The tokens that it found, and
    the blocks that were loaded for it.
    """
    loading = load(policy, prompt(seq_id, ids)).ops
    if loading.background:
        assert policy.admit([prompt(seq_id, ids)], len(ids)) is Refusal.LOADING
    loaded = land(policy, loading)
    seq, grant = computed(policy, seq_id, ids)
    land(policy, policy.background())
    release(policy, seq)
    policy.check()
    return grant.num_cached, loaded


def load(policy, seq):
    return policy.load(seq, seq.prompt_len, policy.lookup(seq))


def land(policy, ops):
    """All transfers; how many slots they fill."""
    for move_id, _ in ops.background:
        policy.landed(move_id)
    return sum(copy.length for transfer in ops.background for copy in transfer.move.copies)


@pytest.mark.parametrize(
    ("name", "stored", "written"),
    [("write through", 14, 0), ("write back", 0, 12), ("exclusive", 0, 12)],
)
def test_every_part_of_a_prompt_is_looked_up_below(name, stored, written):
    """The device has 8 blocks and a prompt 7, of which 6 are evicted by each other one."""
    policy = POLICIES[name](PoolSpec(64, 128, (Tier("dram", 128),)))
    story, other = list(range(56)), list(range(100, 156))
    served(policy, 0, story)
    served(policy, 1, other)
    assert (
        served(policy, 2, story)[0] == 48
    )  # all but the block of the last token, most of which was below
    moved = {
        "hit_tokens": 48,
        "evictions": 12,
        "loaded_blocks": 5,
        "stored_blocks": stored,
        "written_blocks": written,
    }
    assert moved.items() <= policy.counters().items()
    assert policy.usage().in_transit == policy.usage().held == 0
    whole = range(200, 264)  # as large as the device
    assert [served(policy, seq_id, ids)[0] for seq_id, ids in ((3, whole), (4, other), (5, whole))][
        2
    ] == 56


def test_a_loaded_block_leaves_an_exclusive_tier_and_stays_in_an_inclusive_one():
    for name, again in (("exclusive", 8), ("write back", 0)):
        policy = POLICIES[name](PoolSpec(64, 128, (Tier("dram", 128),)))
        served(policy, 0, range(56))
        served(policy, 1, range(100, 156))
        served(policy, 2, range(56))
        written = policy.counters()["written_blocks"]
        served(policy, 3, range(100, 156))
        assert (policy.counters()["written_blocks"] > written) == bool(again)


@pytest.mark.parametrize("order", [Arc, Lirs, Lru, S3Fifo, Sieve, TwoQueues, WTinyLfu])
def test_a_block_that_a_load_needs_is_no_ghost_and_keeps_its_place(order):
    """ARC took it for one that was evicted too early: its target grew with each eviction. Others
    lost it: `no node is evictable`.
    """
    pool = PinnedPool(6, order(), lambda node: None)
    blocks = pool.take(6)
    last = pool.publish(pool.index.root, [(i,) for i in range(6)], blocks)
    pool.put(blocks)
    nodes = chain_to(last)
    pool.hold(nodes[:3])
    pool.put(blocks[:3])
    kept = pool.pin(nodes[3:])
    pool.kept.add(kept)
    for _ in range(3):
        pool.evict(1)
    assert [node.block in kept for node in nodes if node.block != TOMBSTONE] == [True] * 3
    assert getattr(pool.order, "target", 0) == 0
    pool.kept.drop(kept)
    pool.unpin(kept)
    pool.evict(3)
    assert len(pool.free) == 6


def test_load_rules_weigh_the_link_against_a_prefill():
    pool = PoolSpec(64, 128, (Tier("dram", 200, 1e3),))  # one byte a slot: 1,000 tokens/s
    rules = {LoadNever(): 0, LoadIfFaster(900): 48, LoadIfFaster(1100): 0}
    for rule, num_loaded in rules.items():
        policy = TieredCaching(pool, block_size=8, load=rule)
        served(policy, 0, range(56))
        served(policy, 1, range(100, 156))
        served(policy, 2, range(200, 256))
        assert served(policy, 3, range(56)) == (num_loaded, num_loaded)


class Asked(LoadAlways):
    """Keeps the numbers of tokens about which it was asked."""

    def __init__(self):
        self.num_tokens = []

    def is_worth(self, pool, tier, num_tokens):
        self.num_tokens.append(num_tokens)
        return True


def test_a_load_rule_is_asked_about_the_tokens_below_the_device():
    rule = Asked()
    policy = TieredCaching(PoolSpec(64, 128, (Tier("dram", 200),)), block_size=8, load=rule)
    for seq_id, first in enumerate((0, 100, 200)):
        served(policy, seq_id, range(first, first + 56))
    rule.num_tokens.clear()
    assert served(policy, 3, range(56)) == (48, 48)
    assert set(rule.num_tokens) == {48}


def test_an_eviction_below_ends_no_refusal_of_a_load():
    policy = POLICIES["write back"](PoolSpec(64, 128, (Tier("dram", 16),)))
    batch, waiting = passing_batch([computed(policy, 0, range(200, 224))[0]]), prompt(3, range(48))
    served(policy, 1, range(24))
    served(policy, 2, range(100, 132))
    assert load(policy, waiting) is Refusal.LATER
    policy.extend(
        batch, 24
    )  # three blocks are written back, where those were that would have been loaded
    assert load(policy, waiting) is Refusal.LATER


def test_hit_on_a_block_that_is_being_stored_takes_no_other_block():
    """Such a prompt was refused until another one, without computing anything, held what it would
    have found.
    """
    policy = POLICIES["write through"](PoolSpec(64, 128, (Tier("dram", 128),)))
    seq, _ = computed(policy, 0, range(24))
    assert policy.background().background
    release(policy, seq)
    assert computed(policy, 1, range(64))[1].num_cached == 24


def agents(num_sessions, num_turns, gap_ps=10**9, output_len=8):
    """Sessions in turn, each of whose prompts begins with all that it said before."""
    for i in range(num_sessions * num_turns):
        turn, session = divmod(i, num_sessions)
        ids = tuple(1000 * session + k for k in range(40 * (turn + 1)))
        yield Request(i, i * gap_ps, len(ids), output_len, prompt_ids=ids)


def run(make, tiers, requests=None, prefetch=0, budget=64, **options):
    on = replace(server(host_bandwidth=1e9), tiers=tiers)
    slots = tuple(
        Tier(name, int(tier.size_gib * 2**30) // MODEL.kv_bytes_per_token)
        for name, tier in tiers.items()
    )
    pool = PoolSpec(600, 512, slots)
    cost = analytic(on, overhead_s=1e-3)
    policy = make(pool)
    limits = {"max_num_batched_tokens": budget, "max_num_seqs": 8}
    scheduler = ChunkedPrefill(policy, Recompute(cost), **limits, prefetch=prefetch)
    recorder = simulate(requests or list(agents(8, 4)), scheduler, cost, 512, pool=pool, **options)
    return policy, recorder


@pytest.mark.parametrize("name", ["write through", "exclusive"])
@pytest.mark.parametrize("gap_ms", [10, 20, 40])
def test_fast_equals_slow_where_requests_that_wait_are_prefetched(name, gap_ms):
    tiers, requests = (
        {
            "dram": TierSpec(
                size_gib=gib(4000), read_bandwidth=3e6, write_bandwidth=1e9, latency_s=1e-5
            )
        },
        list(agents(8, 4, gap_ms * 10**9, 20)),
    )
    assert_same(
        *(
            run(POLICIES[name], tiers, requests, prefetch=3, fast_forward=way)[1]
            for way in (True, False)
        )
    )


def one_by_one(seed):
    """Prompts of 1 to 60 blocks, of which most go on from the beginning of an earlier one; each
    comes when the last has been served.
    """
    random, prompts = Random(seed), list[list[int]]()
    for i in range(100):
        shared = random.choice(prompts) if prompts and random.random() < 0.7 else []
        start = shared[: random.randrange(len(shared) + 1)]
        length = random.randrange(8, 480)
        prompts.append([*start, *range(1000 * i, 1000 * i + 480)][:length])
        yield Request(i, i * 10**12, length, 2, prompt_ids=tuple(prompts[-1]))


@pytest.mark.parametrize("seed", range(4))
def test_chunks_change_neither_what_a_tier_stores_nor_what_is_found(seed):
    """Blocks of later chunks counted as more recent: the beginning of a prompt left first."""
    tiers = {"dram": TierSpec(gib(1200), 1e9, 1e9, 1e-5)}
    whole, chunks, blocks = (
        run(TieredCaching, tiers, list(one_by_one(seed)), budget=budget)[0].counters()
        for budget in (512, 64, 16)
    )
    assert whole["loaded_blocks"]
    assert whole == chunks == blocks


def test_the_beginning_of_a_prompt_outlives_its_end_below():
    """vLLM 0.33 finds 40 blocks of the first prompt too, computed in one step or in five."""
    for chunk in (50, 10):
        policy = TieredCaching(PoolSpec(70, 128, (Tier("dram", 100),)), block_size=1, watermark=0)
        in_chunks(policy, 0, range(50), chunk)
        in_chunks(policy, 1, range(100, 160), chunk)
        hit = policy.lookup(prompt(2, range(50)))
        assert (len(hit.nodes), [place for place, _ in hit.behind]) == (10, [1] * 30)


def in_chunks(policy, seq_id, ids, chunk):
    """One prompt is computed in chunks, and leaves; each transfer lands at once."""
    seq = prompt(seq_id, ids)
    admit_and_prefill(policy, [seq], min(chunk, len(ids)))
    while seq.num_stored < len(ids):
        land(policy, policy.background())
        extend(policy, [seq], min(chunk, len(ids) - seq.num_stored))
    land(policy, policy.background())
    release(policy, seq)
    policy.check()


def gib(num_slots):
    return num_slots * MODEL.kv_bytes_per_token / (1 << 30)


SIZES = [(0, 1e9), (64, 1e9), (4000, 1e9), (4000, 1e6)]


@pytest.mark.parametrize(  # every pair of a policy, a tier and a number of prefetched requests
    ("name", "size", "bandwidth", "prefetch"),
    [
        (name, *tier, 3 * ((row + column) % 2))
        for row, name in enumerate(POLICIES)
        for column, tier in enumerate(SIZES)
    ],
)
def test_every_request_is_served_whatever_the_tier(name, size, bandwidth, prefetch):
    tiers = {"dram": TierSpec(gib(size) + 1e-9, bandwidth, bandwidth, 1e-5)}
    policy, recorder = run(POLICIES[name], tiers, prefetch=prefetch)
    assert recorder.totals.finished == 32
    assert policy.usage().held == 0


def test_a_tier_finds_what_the_device_has_lost_and_a_slow_one_makes_requests_wait():
    ends = {}
    for bandwidth in (1e9, 1e6):
        policy, recorder = run(
            POLICIES["write through"], {"dram": TierSpec(gib(4000), bandwidth, 1e9)}
        )
        assert policy.counters()["loaded_blocks"]
        ends[bandwidth] = recorder.end_ps
    without, _ = run(POLICIES["write through"], {"dram": TierSpec(1e-9)})
    assert policy.counters()["hit_tokens"] > without.counters()["hit_tokens"]
    assert ends[1e6] > ends[1e9]


def test_prefetched_requests_wait_less_for_a_slow_tier():
    waits = {}
    for prefetch in (0, 3):
        tiers = {
            "dram": TierSpec(
                size_gib=gib(4000), read_bandwidth=1e7, write_bandwidth=1e9, latency_s=1e-5
            )
        }
        requests = list(agents(8, 4, 4 * 10**9))
        policy, recorder = run(POLICIES["exclusive"], tiers, requests, prefetch)
        columns = recorder.requests.columns()
        waits[prefetch] = (columns["first_token_ps"] - columns["arrival_ps"]).mean()
        assert policy.counters()["hit_tokens"] == 1920
    assert waits[3] < 0.8 * waits[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TieredCaching(PoolSpec(64, 128)), "no tier"),
        (
            lambda: TieredCaching(POOLS[0], exclusive=True, store=WriteThrough()),
            "only at its eviction",
        ),
        (
            lambda: TieredCaching(POOLS[0], eviction=Arc(), store=BeforeEviction()).background(),
            "use lru",
        ),
        (lambda: OnReuse(0), "num_hits=0"),
    ],
)
def test_incompatible_options_of_tiers_are_refused(make, message):
    refuses(message, make)


def test_a_tier_larger_than_the_one_that_was_given_is_reported():
    """A store in the background is checked as a swap is."""
    make = partial(TieredCaching, PoolSpec(600, 512, (Tier("dram", 1200),)), 8)
    with pytest.raises(
        PlugInError, match=r"TieredCaching moves slots up to \d+ of the dram; 600 were given"
    ):
        run(
            lambda pool: make(),
            {
                "dram": TierSpec(
                    size_gib=gib(600) + 1e-9,
                    read_bandwidth=1e9,
                    write_bandwidth=1e9,
                    latency_s=1e-5,
                )
            },
        )


@pytest.mark.parametrize("name", ["write through", "exclusive", "write back"])
def test_what_a_tier_stores_is_listed_and_found_below(name):
    policy = POLICIES[name](PoolSpec(64, 128, (Tier("dram", 128),)))
    story = list(range(56))
    served(policy, 0, story)
    served(policy, 1, list(range(100, 156)))
    stored, written = tokens_below(policy, 128)
    assert written == 0
    assert 48 <= stored <= 128
    hit = policy.lookup(prompt(2, story))
    assert hit.num_below(56) == {"dram": 48 - hit.num_cached(56)}
    loading = load(policy, prompt(2, story))
    assert stored <= sum(tokens_below(policy, 128)) <= 128
    assert land(policy, loading.ops) == 48 - hit.num_cached(56)


@pytest.mark.parametrize("sizes", [(128, 256), (64, 256)])
def test_a_failed_engine_leaves_nothing_pinned_in_the_tiers_that_it_was_reading(sizes):
    tiers = tuple(Tier(name, size) for name, size in zip(("dram", "nvme"), sizes, strict=True))
    policy = TieredCaching(PoolSpec(64, 128, tiers), block_size=8)
    for number in range(3):
        served(policy, number, range(100 * number, 100 * number + 56))
    assert load(policy, prompt(9, range(56))).ops.background
    hierarchy = policy._hierarchy
    assert any(tier.pins for tier in hierarchy.tiers)
    hierarchy.give_up()
    assert not any(tier.pins for tier in hierarchy.tiers)
    for tier in hierarchy.tiers:
        tier.check()
