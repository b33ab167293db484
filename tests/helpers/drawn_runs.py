"""Whole runs drawn by a seed, of each kind of scheduler and policy that go together. The draws of
hypothesis are others in other releases of it; these are the same, for golden rows.

Each kind is a function of a Random: the requests, a scheduler, the costs, and options of a run.
"""

from dataclasses import replace
from functools import partial

import numpy as np
from shared_beginnings import (
    LONGEST,
    RELEASE,
    VLLM,
    pool_and_cost,
    requests_of,
    vllms_scheduler,
)
from tiny import MODEL, analytic, server

from testbed.core.layers import KvGroup, Window
from testbed.core.request import PS, Request, Rows, Turns
from testbed.core.specs import ModelSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.cost.model import UNBOUNDED
from testbed.cost.profile import ProfileCost, read_profile
from testbed.cost.speculative import SpeculativeCost
from testbed.engine.arrivals import BoundedWorkload, SessionWorkload
from testbed.memory.contiguous.reservations import ContiguousMax, ContiguousOracle, ContiguousPow2
from testbed.memory.dropping.prompt_budget import PromptBudget
from testbed.memory.dropping.quantised_groups import QuantisedGroups
from testbed.memory.groups.grouped import Grouped
from testbed.memory.groups.grouped_caching import GroupedCaching
from testbed.memory.offloading.lmcache import LMCache
from testbed.memory.offloading.vllm import VllmOffloading
from testbed.memory.paged.paged import Paged
from testbed.memory.paged.paged_2023 import Paged2023
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.eviction.arc import Arc
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
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.pinned_caching import PinnedCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.radix.radix import Radix
from testbed.memory.tiers.load_rules import LoadAlways, LoadIfFaster
from testbed.memory.tiers.store_rules import BeforeEviction, OnReuse, WriteBack, WriteThrough
from testbed.memory.tiers.tiered_caching import TieredCaching
from testbed.run.oracles import with_lengths
from testbed.sched.beam_search import SyntheticBeams
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import Mixed2023, MixedPrefill
from testbed.sched.orders import Aging, ByPriority, FirstCome, SessionOrder, TimeToLive
from testbed.sched.preemption import Recompute, RecomputeSingleSwapGroup, Swap
from testbed.sched.separate import SeparatePrefill
from testbed.sched.sglang import SGLang
from testbed.sched.sglang_overlap import OverlappedSGLang
from testbed.sched.static_batch import StaticBatch
from testbed.sched.vllm_v1 import AsyncVllmV1, VllmV1
from testbed.speculation.acceptance import Constant, Markov, PerPosition
from testbed.speculation.heads import Heads
from testbed.speculation.ngram import NGram
from testbed.vllm.releases import DEFAULT, RELEASES

ORDERS = (Lru, Fifo, Lfu, Arc, BySession, CostAware, Sieve, S3Fifo, TwoQueues, Gdsf, LruK, Lirs)
EVICTIONS = (*ORDERS, WTinyLfu)
STORES = (WriteThrough, WriteBack, OnReuse, partial(BeforeEviction, 4))
LOADS = (LoadAlways, LoadAlways, partial(LoadIfFaster, 20_000))
SGLANG_ORDERS = ("fcfs", "lof", "random", "lpm", "dfs-weight", "hrrn", "shortest-prefill-first")
GROUPS = (
    KvGroup("full", num_layers=6, slot_bytes=64),
    KvGroup("window", num_layers=2, slot_bytes=64, window=20),
)
SOFTWARE = {"overhead_s": 1e-3, "overhead_per_request_s": 1e-4, "copy_s": 1e-5}
ANALYTIC = analytic(**SOFTWARE, repeated_read=0.3)
WINDOWED = analytic(
    model=replace(MODEL, window=Window(20, 1), kv_dtype_bytes=1), **SOFTWARE, repeated_read=0.3
)
PROFILE = read_profile("h200-opt-13b-tp1")
MEASURED = ProfileCost(ModelSpec(**PROFILE["model"]), None, PROFILE)
COSTS = ANALYTIC, ANALYTIC, WINDOWED, MEASURED


def pool_of(random):
    num_slots = 8 * random.randint(12, 50) + random.choice([0, 5])
    return PoolSpec(num_slots, LONGEST, host(random.choice([0, 64, 160, 900])))


def limits_of(random):
    budget = random.choice([16, 64, 512])
    return {"max_num_batched_tokens": budget, "max_num_seqs": random.choice([3, 8, 40])}


def requests_of_several(random, pool):
    """Requests of one sequence, of several and beams, in sessions and of three priorities."""
    requests = list[Request]()
    for request in requests_of(random, pool.num_slots):
        num_seqs = random.choice([1, 1, 2, 3])
        beam = num_seqs > 1 and random.random() < 0.5
        rank = {"session": random.randrange(5), "priority": random.randrange(3)}
        requests.append(request._replace(num_seqs=num_seqs, beam=beam, **rank))
    return requests


def by_iterations(random):
    """A policy of blocks or of contiguous slots, under the schedulers of 2023."""
    pool, size = pool_of(random), random.choice([1, 4, 8, 16])
    paged = [partial(kind, block_size=size) for kind in (Paged, Paged2023, PrefixCaching)]
    make = random.choice([*paged, *paged, ContiguousMax, ContiguousPow2, ContiguousOracle])
    policy = with_lengths(make, {})(pool)
    kind = random.choice([SeparatePrefill, MixedPrefill, ChunkedPrefill, Mixed2023])
    rule = random.choice([Recompute, Swap, RecomputeSingleSwapGroup])(ANALYTIC)
    scheduler = kind(policy, rule, **limits_of(random))
    return requests_of_several(random, pool), scheduler, random.choice(COSTS), {}


def by_rank(random):
    """An order of requests, over a prefix cache with an order of eviction."""
    pool = pool_of(random)
    orders = [ByPriority, SessionOrder, partial(Aging, 1e-3), partial(TimeToLive, 0.02), FirstCome]
    eviction = random.choice(EVICTIONS)()
    policy = PrefixCaching(pool, random.choice([4, 8]), eviction=eviction)
    rule = random.choice([Recompute, Swap, RecomputeSingleSwapGroup])(ANALYTIC)
    scheduler = ChunkedPrefill(
        policy, rule, **limits_of(random), order=random.choice(orders)(), prefetch=0
    )
    return requests_of_several(random, pool), scheduler, random.choice(COSTS), {}


def of_vllm(random):
    """vLLM V1 of any release, which plans ahead or not, with a cache of prompts or of answers."""
    pool, release = pool_of(random), random.choice(list(RELEASES.values()))
    kind = random.choice([VllmV1, partial(AsyncVllmV1, ignore_eos=random.random() < 0.5)])
    policy = random.choice([Paged, partial(OutputCaching, release=release)])
    options = {
        "long_prefill_token_threshold": random.choice([0, 16]),
        "scheduler_reserve_full_isl": random.random() < 0.5,
        "enable_chunked_prefill": random.random() < 0.7,
    }
    limits = limits_of(random) | {"max_num_batched_tokens": random.choice([64, 512])}
    scheduler = kind(policy(pool, 8), Recompute(ANALYTIC), **limits, **options, release=release)
    return requests_of_several(random, pool), scheduler, random.choice(COSTS), {}


def of_sglang(random):
    """SGLang's scheduler, overlapped or not, over its radix cache."""
    pool, page = pool_of(random), random.choice([1, 2, 8])
    return under_sglang(random, pool, Radix(pool, page))


def of_pinned_blocks(random):
    """The same over a cache by blocks with an order of eviction, or over none."""
    pool, page = pool_of(random), random.choice([4, 8])
    pinned = partial(PinnedCaching, eviction=random.choice(EVICTIONS)())
    policy = random.choice([pinned, pinned, Paged])
    return under_sglang(random, pool, policy(pool, page, random.choice([0.0, 0.1])))


def under_sglang(random, pool, policy):
    chunk = random.choice([None, 16, 64])
    orders = SGLANG_ORDERS[:3] if isinstance(policy, Paged) else SGLANG_ORDERS
    kind = random.choice([SGLang, OverlappedSGLang])
    options = {
        "max_prefill_tokens": random.choice([64, 512]),
        "schedule_policy": random.choice(orders),
        "schedule_conservativeness": random.choice([0.05, 1.0]),
        "new_token_ratio_decay_steps": random.choice([5, 600]),
        "retraction_policy": random.choice(["length", "priority"]),
        "ignore_eos": random.random() < 0.5,
    }
    if options["schedule_policy"] not in ("fcfs", "lof"):  # which go with priorities
        options["retraction_policy"] = "length"
    scheduler = kind(
        policy,
        Recompute(ANALYTIC),
        max_running_requests=8,
        chunked_prefill_size=chunk,
        enable_mixed_chunk=chunk == 64,
        enable_priority_scheduling=options["retraction_policy"] == "priority",
        **options,
    )
    requests = requests_of(random, pool.num_slots, declared=random.random() < 0.5)
    crowd = [request._replace(arrival_ps=request.arrival_ps // 100) for request in requests]
    return crowd, scheduler, random.choice(COSTS), {}


def of_tiers(random):
    """A cache with a tier below the device."""
    pool, cost = pool_and_cost(random)
    pool = replace(pool, tiers=tuple(tier._replace(bandwidth=1e7) for tier in pool.tiers))
    store = random.choice(STORES)()
    exclusive = isinstance(store, WriteBack | BeforeEviction) and random.random() < 0.5
    load = random.choice(LOADS)()
    policy = TieredCaching(pool, 8, store=store, load=load, exclusive=exclusive)
    scheduler = ChunkedPrefill(
        policy, Recompute(cost), **limits_of(random), prefetch=random.choice([0, 2])
    )
    return requests_of(random, pool.num_slots), scheduler, cost, {}


def of_offloading(random):
    """vLLM's connectors, for requests of several sequences and of unknown content too."""
    pool, cost = pool_and_cost(random, least_host=32)
    policy = random.choice([VllmOffloading, LMCache])(pool, 8, release=RELEASE)
    requests = [
        request if i % 3 else request._replace(prompt_ids=None)
        for i, request in enumerate(requests_of_several(random, pool))
    ]
    return requests, vllms_scheduler(random, policy, cost), cost, {}


def of_groups(random):
    """Layers of two kinds, with and without a cache."""
    pool = replace(pool_of(random), tiers=(), layer_bytes=64, num_layers=8, groups=GROUPS)
    kind = random.choice([Grouped, GroupedCaching, GroupedCaching])
    rule = random.choice(["one_page_size", "large_pages", "fixed_split"])
    policy = kind(pool, block_size=random.choice([4, 8]), page_rule=rule)
    order = random.choice([FirstCome, ByPriority])()
    scheduler = ChunkedPrefill(policy, Recompute(ANALYTIC), **limits_of(random), order=order)
    return requests_of(random, pool.num_slots), scheduler, random.choice(COSTS[:3]), {}


def of_dropped_tokens(random):
    """Policies that keep less than every token."""
    pool = pool_of(random)
    budget = partial(PromptBudget, budget=24, interval=random.choice([1, 8]), block_size=8)
    ratio = partial(QuantisedGroups, group=16, residual=8, ratio=2, block_size=8)
    policy = random.choice([budget, ratio])(pool)
    kind = random.choice([SeparatePrefill, ChunkedPrefill])
    scheduler = kind(policy, Recompute(ANALYTIC), **limits_of(random))
    return requests_of(random, pool.num_slots), scheduler, random.choice(COSTS), {}


def with_drafts(random):
    """vLLM V1 with drafts, of any acceptance."""
    pool = pool_of(random)
    acceptances = [Constant(0.6), PerPosition([0.9, 0.5, 0.5]), Markov(0.9, 0.2, 0.1, 0.3)]
    options = {"num_drafts": random.randint(1, 4), "acceptance": random.choice(acceptances)}
    kind, drafter, of_scheduler = random.choice(
        [(VllmV1, Heads, {}), (VllmV1, NGram, {}), (AsyncVllmV1, Heads, {"ignore_eos": True})]
    )
    if kind is VllmV1:
        options["off_above"] = random.choice([None, 4])
    speculation = drafter(**options)
    cache = random.choice([Paged, partial(OutputCaching, release=DEFAULT)])
    limits = limits_of(random) | {"max_num_batched_tokens": 128} | VLLM | {"release": DEFAULT}
    rule = Recompute(ANALYTIC)
    scheduler = kind(
        cache(pool, 8), rule, drafter=speculation, max_len=LONGEST, **limits, **of_scheduler
    )
    draft_cost = AnalyticCost(MODEL, server(), Efficiencies())
    cost = SpeculativeCost(ANALYTIC, draft_cost, speculation.max_drafts, speculation.off_above)
    acceptance = {"acceptance": speculation.acceptance}
    return requests_of(random, pool.num_slots), scheduler, cost, acceptance


def of_static_batches(random):
    """Batches that end together, in contiguous slots; the run is stopped in some."""
    pool, lengths = PoolSpec(LONGEST * random.randint(1, 6), LONGEST), {}
    make = random.choice([ContiguousMax, ContiguousPow2, ContiguousOracle])
    scheduler = StaticBatch(
        with_lengths(make, lengths)(pool),
        Recompute(ANALYTIC),
        max_batch_size=random.randint(1, 9),
        max_padded_len=random.choice([LONGEST, 4 * LONGEST]),
        lengths=lengths,
    )
    marks = {"snapshots_ps": (0, PS // 10), "stop_ps": random.choice([PS // 2, UNBOUNDED])}
    return requests_of(random, 300), scheduler, random.choice(COSTS), marks


def after_answers(random):
    """Requests that follow the answers of others: sessions, or so many in flight."""
    make = random.choice([by_rank, of_vllm])
    drawn, scheduler, cost, options = make(random)
    drawn = list(drawn)
    columns = ([getattr(r, name) for r in drawn] for name in ("prompt_len", "output_len"))
    rows = Rows(*map(np.array, columns), prompt_ids=[r.prompt_ids for r in drawn])
    arrivals = np.array([r.arrival_ps for r in drawn])
    if random.random() < 0.5:
        return BoundedWorkload(rows, arrivals, 1, False, random.choice([1, 4])), scheduler, cost, {}
    after = [(row - 4,) if row >= 4 else () for row in range(len(drawn))]
    waits_s = np.array([random.choice([0.0, 0.01, 0.2]) for _ in drawn])
    session = np.arange(len(drawn)) % 4
    turns = Turns(session, after, waits_s, np.zeros(len(drawn)))
    return (
        SessionWorkload(replace(rows, turns=turns), 0 * arrivals, 1, False, 3, 10**9),
        scheduler,
        cost,
        options,
    )


KINDS = {
    "iterations": by_iterations,
    "ranks": by_rank,
    "vLLM": of_vllm,
    "SGLang": of_sglang,
    "tiers": of_tiers,
    "offloading": of_offloading,
    "groups": of_groups,
    "dropped tokens": of_dropped_tokens,
    "drafts": with_drafts,
    "pinned blocks": of_pinned_blocks,
    "static batches": of_static_batches,
    "answers": after_answers,
}
BEAMS = SyntheticBeams(concentration=0.6)
