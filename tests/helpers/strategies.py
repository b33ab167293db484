"""Random pools, policies, schedulers and workloads for whole simulations."""

from dataclasses import replace
from functools import partial
from random import Random

import hypothesis.strategies as st
import numpy as np
from releases import freeing_after_run

from testbed.core.request import Request, Rows, Turns, Workload
from testbed.engine.arrivals import BoundedWorkload, SessionWorkload
from testbed.experiments.real.lockstep.turn_draws import with_turns
from testbed.memory.contiguous.reservations import ContiguousMax, ContiguousOracle, ContiguousPow2
from testbed.memory.groups.grouped import Grouped
from testbed.memory.groups.grouped_caching import GroupedCaching
from testbed.memory.paged.paged import BlockMemory, Paged
from testbed.memory.policy import PoolSpec, Tier, host
from testbed.memory.prefix_cache.eviction.arc import Arc
from testbed.memory.prefix_cache.eviction.by_session import BySession
from testbed.memory.prefix_cache.eviction.cost_aware import CostAware
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.ranked import Fifo
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.radix.radix import Radix
from testbed.memory.served import Drafts
from testbed.memory.tiers.store_rules import BeforeEviction, OnReuse, WriteBack, WriteThrough
from testbed.memory.tiers.tiered_caching import TieredCaching
from testbed.run.config import MixShare
from testbed.run.oracles import with_lengths
from testbed.run.workload import with_mix
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.orders import Aging, ByPriority, SessionOrder, TimeToLive
from testbed.sched.preemption import Recompute, RecomputeSingleSwapGroup, Swap
from testbed.sched.separate import SeparatePrefill
from testbed.sched.vllm_v1 import AsyncVllmV1, VllmV1
from testbed.vllm.releases import RELEASES

MAX_LEN = 128
CONTIGUOUS = (ContiguousMax, ContiguousPow2, ContiguousOracle)


@st.composite
def pools(draw):
    """A few longest sequences, or some slots more; a host pool that is roomy, tight or not
    there.
    """
    num_slots = draw(st.sampled_from([1, 2, 3, 5])) * MAX_LEN + draw(st.sampled_from([0, 0, 5]))
    return PoolSpec(num_slots, MAX_LEN, host(draw(st.sampled_from([1000, 0, 200, 64]))))


@st.composite
def policies(draw, classes=(Paged, Paged, Paged, *CONTIGUOUS), *, prefix=0):
    """A function that makes the policy; if it shares it may have registered a prefix."""
    policy, pool = draw(st.sampled_from(classes)), draw(pools())
    is_cache, is_paged = issubclass(policy, PrefixCaching), issubclass(policy, BlockMemory)
    finds = is_cache or policy is Radix
    options = {"block_size": draw(st.sampled_from([8, 1, 4, 16] if finds else [1, 3, 8, 16]))}
    if is_paged:
        options["watermark"] = draw(st.sampled_from([0.0, 0.01, 0.2]))
    if policy is OutputCaching:
        options["release"] = draw(st.sampled_from(list(RELEASES.values())))
        options["drafts"] = draw(st.sampled_from(Drafts))
    order = draw(st.sampled_from([Lru, Fifo, BySession, Arc, CostAware])) if is_cache else None

    def make():
        built = with_lengths(policy, {})(
            pool, **options, **({"eviction": order()} if order else {})
        )
        if prefix and is_paged:
            built.register_prefix(prefix)
        return built

    return make


SMALL_TIER = Tier("dram", 100, 1e8)
STORE_RULES = (WriteThrough, WriteBack, OnReuse, partial(BeforeEviction, 4))
SHARING_RULES = (WriteThrough, OnReuse, partial(BeforeEviction, 4))
PAGE_RULES = ("one_page_size", "large_pages", "fixed_split")


@st.composite
def tiered_policies(draw):
    """The same for a prefix cache with a tier below the device, over its options."""
    pool = draw(pools())
    tiered = replace(pool, tiers=(*pool.tiers, SMALL_TIER))
    block_size = draw(st.sampled_from([8, 4, 16]))
    make_store = draw(st.sampled_from(STORE_RULES))
    return lambda: TieredCaching(tiered, block_size=block_size, store=make_store())


@st.composite
def sharing_policies(draw, num_engines):
    """Functions that make the policies of as many engines, whose tiers go together, and the names
    of those that they share.
    """
    block_size = draw(st.sampled_from([8, 4]))
    tiers = SMALL_TIER, SMALL_TIER._replace(name="nvme", num_slots=draw(st.sampled_from([40, 400])))
    makers = []
    for _ in range(num_engines):
        pool = draw(pools())
        options = {"block_size": block_size, "exclusive": draw(st.booleans())}
        own_rules = [partial(BeforeEviction, 4)] if options["exclusive"] else SHARING_RULES
        make_store = draw(st.sampled_from(own_rules))
        tiered = replace(pool, tiers=(*pool.tiers, *tiers))
        makers.append(partial(tiered_policy, tiered, make_store, options))
    return makers, draw(st.sampled_from([("dram",), ("nvme",), ("dram", "nvme")]))


def tiered_policy(pool, make_store, options):
    """A prefix cache over the tiers of the pool."""
    return TieredCaching(pool, store=make_store(), **options)


@st.composite
def grouped_policies(draw, groups, classes=(GroupedCaching, GroupedCaching, Grouped)):
    """The same for a policy of several KV groups, by the rules that all of them know."""
    num_layers = sum(group.num_layers for group in groups)
    pool = replace(draw(pools()), tiers=(), layer_bytes=64, num_layers=num_layers, groups=groups)
    policy, rule = draw(st.sampled_from(classes)), draw(st.sampled_from(PAGE_RULES))
    options = {"block_size": draw(st.sampled_from([4, 8]))}
    if draw(st.booleans()):
        options |= freeing_after_run()
    return lambda: policy(pool, page_rule=rule, **options)


LIMITS = st.fixed_dictionaries(
    {
        "max_num_batched_tokens": st.sampled_from([4, 40, 300]),
        "max_num_seqs": st.sampled_from([2, 40, 40]),
    }
)


@st.composite
def schedulers(draw, classes=(SeparatePrefill, MixedPrefill, ChunkedPrefill)):
    """A function that makes the scheduler of a policy."""
    if draw(st.sampled_from([False, False, True])):
        return draw(vllm_schedulers())
    scheduler = draw(st.sampled_from(classes))
    preemption = draw(st.sampled_from([Recompute, Swap, RecomputeSingleSwapGroup]))
    return partial(built, scheduler, preemption, draw(LIMITS))


def built(scheduler, preemption, limits, policy, **options):
    """A scheduler of a policy."""
    return scheduler(policy, preemption(), **limits, **options)


@st.composite
def vllm_schedulers(draw):
    """The same for vLLM V1, over all its options."""
    limits = {
        "max_num_seqs": draw(st.sampled_from([2, 40, 40])),
        "max_num_batched_tokens": draw(st.sampled_from([40, 60, 300])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 3, 16])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "enable_chunked_prefill": draw(st.booleans()),
        "release": draw(st.sampled_from(list(RELEASES.values()))),
    }
    preemption = draw(st.sampled_from([Recompute, Recompute, Swap, RecomputeSingleSwapGroup]))
    ahead = {"ignore_eos": draw(st.booleans())}
    if draw(st.sampled_from([False, True, True])):
        return partial(built, AsyncVllmV1, preemption, limits, **ahead)
    return partial(built, VllmV1, preemption, limits)


@st.composite
def ranked_schedulers(draw):
    """The same for schedulers that serve by rank, one of which retains what is answered."""
    preemption = draw(st.sampled_from([Recompute, Swap, RecomputeSingleSwapGroup]))
    time_s = draw(st.sampled_from([1e-6, 1e-3, 0.02, 1e3]))
    kinds = [SessionOrder, ByPriority, partial(Aging, time_s), partial(TimeToLive, time_s)]
    order = draw(st.sampled_from([*kinds, kinds[-1]]))
    return partial(in_order, ChunkedPrefill, preemption, draw(LIMITS), order)


def in_order(scheduler, preemption, limits, make_order, policy):
    """A scheduler of a policy, with an order of its own."""
    return scheduler(policy, preemption(), **limits, order=make_order())


@st.composite
def workloads(draw, prefix=0):
    """Requests of one sequence, groups and beams; some of their prompts begin with a prefix of that
    many tokens.
    """
    size = draw(st.sampled_from([40, 20, 8, 2]))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    gap_ps = draw(st.sampled_from([10**8, 0, 10**9, 3 * 10**9, 10**11]))
    arrivals = np.cumsum(rng.integers(0, gap_ps + 1, size)).tolist()
    lengths = rng.integers(
        1, draw(st.sampled_from([40, MAX_LEN // 2, 6, MAX_LEN // 2 + 1])) + 1, (size, 2)
    ).tolist()
    num_seqs = rng.choice([1, 1, 2, 4], size).tolist() if draw(st.booleans()) else [1] * size
    beam = draw(st.booleans())
    prefixes = rng.choice([0, prefix], size).tolist()
    return [
        Request(
            i,
            arrival_ps=at,
            prompt_len=max(prompt, prefix),
            output_len=output,
            num_seqs=n,
            beam=beam and n > 1 and i % 3 > 0,
            registered_prefix=prefix,
        )
        for i, (at, (prompt, output), n, prefix) in enumerate(
            zip(arrivals, lengths, num_seqs, prefixes, strict=True)
        )
    ]


SHARES = [  # weights, of which every draw has others beside it
    MixShare(1, False, 3),
    MixShare(2, False, 1),
    MixShare(4, False, 1),
    MixShare(2, True, 1),
    MixShare(3, True, 1),
    MixShare(6, True, 1),
]


@st.composite
def mixed_workloads(draw):
    """Requests of one workload that sample by random shares: plain, parallel and beams side by
    side.
    """
    shares = draw(st.lists(st.sampled_from(SHARES), min_size=1))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    size = draw(st.sampled_from([40, 20, 2]))
    rows = Rows(*rng.integers(1, draw(st.sampled_from([6, 40])) + 1, (2, size)))
    arrivals = np.cumsum(rng.integers(0, draw(st.sampled_from([1, 10**9, 10**11])), size))
    return list(Workload(with_mix(rows, shares, rng), arrivals))


@st.composite
def with_shared_prompts(draw, requests):
    """The same requests, whose prompts begin as one of a few stories and end on their own."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    num_stories = draw(st.sampled_from([1, 2, 5]))
    changed = []
    for r in draw(requests):
        shared, story = int(rng.integers(0, 2 * r.prompt_len)), int(rng.integers(num_stories))
        ids = (
            story * MAX_LEN + i if i < shared else -1 - r.request_id for i in range(r.prompt_len)
        )
        changed.append(r._replace(prompt_ids=tuple(ids)))
    return changed


@st.composite
def with_answers(draw, requests):
    """The same requests, of which some contain the answers to earlier ones."""
    random = Random(draw(st.integers(0, 10**6)))
    return with_turns(random, draw(requests), MAX_LEN)


@st.composite
def with_ranks(draw, requests):
    """The same requests, in a few sessions and of three priorities."""
    num_sessions = draw(st.sampled_from([1, 3, 8]))
    return [
        r._replace(session=r.request_id % num_sessions, priority=r.request_id % 3)
        for r in draw(requests)
    ]


def of_one_sequence(requests):
    """The same requests, each of which has one output."""
    return [r._replace(num_seqs=1, beam=False) for r in requests]


@st.composite
def session_workloads(draw, num_seqs=(1, 2)):
    """A few sessions whose rows wait for up to two earlier ones, and whose prompts repeat what came
    before.
    """
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    size, num_sessions = draw(st.sampled_from([1, 5, 30])), draw(st.sampled_from([1, 3, 8]))
    session = np.unique(np.sort(rng.integers(0, num_sessions, size)), return_inverse=True)[
        1
    ].astype(np.int64)
    after = [
        tuple(sorted({int(i) for i in rng.integers(max(0, row - 3), row + 1, 2)} - {row}))
        for row in range(size)
    ]
    after = [
        tuple(earlier for earlier in before if session[earlier] == session[row])
        for row, before in enumerate(after)
    ]
    longest = draw(st.sampled_from([0.0, 1e-3, 0.5]))
    waits = rng.choice([0.0, longest, longest / 3], size)
    prompts, outputs = rng.integers(1, MAX_LEN // 2 + 2, (2, size))
    ids = [
        tuple(range(s * MAX_LEN, s * MAX_LEN + n))
        for s, n in zip(session.tolist(), prompts.tolist(), strict=True)
    ]
    rows = Rows(
        prompts, outputs, prompt_ids=ids, turns=Turns(session, after, waits, np.zeros(size))
    )
    gap_ps = draw(st.sampled_from([0, 10**9]))
    arrivals = np.zeros(size, np.int64)
    return SessionWorkload(
        rows,
        arrivals,
        draw(st.sampled_from(num_seqs)),
        False,
        draw(st.sampled_from([1, 2, 9])),
        gap_ps,
    )


@st.composite
def bounded_workloads(draw, num_seqs=(1, 2)):
    """Requests at times of their own, of which a few are unanswered at most; some prompts begin
    alike.
    """
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    size = draw(st.sampled_from([40, 8, 1]))
    prompts, outputs = rng.integers(1, MAX_LEN // 2 + 2, (2, size))
    ids = [tuple(range(n)) for n in prompts.tolist()]
    gap_ps = draw(st.sampled_from([10**8, 0, 3 * 10**9, 10**11]))
    arrivals = np.cumsum(rng.integers(0, gap_ps + 1, size))
    return BoundedWorkload(
        Rows(prompts, outputs, prompt_ids=ids),
        arrivals,
        draw(st.sampled_from(num_seqs)),
        False,
        draw(st.sampled_from([1, 2, 9, 50])),
    )
