"""Random runs of a server with a cache below the device, whose prompts share beginnings."""

from dataclasses import replace
from functools import partial

from digests import OpsRecorder, row_of_run
from same_runs import assert_same
from tiny import MODEL, analytic, server

from testbed.core.request import Request
from testbed.core.specs import TierSpec
from testbed.engine.simulation import simulate
from testbed.memory.policy import PoolSpec, Tier
from testbed.sched.preemption import Recompute
from testbed.sched.vllm_v1 import AsyncVllmV1, VllmV1
from testbed.vllm.releases import release_numbered

LONGEST = 512  # tokens
RELEASE = release_numbered("0.33")
VLLM = {"long_prefill_token_threshold": 0, "scheduler_reserve_full_isl": True, "release": RELEASE}


def requests_of(random, pool, *, declared=False):
    """24 requests over time, from three stories; lengths fit a pool of so many slots.
    declared: with a limit of generated tokens, and a priority.
    """
    now, stories = 0, [[random.randrange(10**6) for _ in range(pool)] for _ in range(3)]
    for i in range(24):
        now += round(random.expovariate(1 / random.choice([1, 20, 200])) * 10**9)
        length = random.randint(1, pool // 2)
        shared = random.choice([0, length, random.randint(0, length)])
        own = tuple(random.randrange(10**6) for _ in range(length - shared))
        output_len, more = random.randint(1, pool // 4), {}
        if declared:
            more = {"max_new_tokens": output_len, "priority": random.randint(0, 2)}
        ids = (*random.choice(stories)[:shared], *own)
        yield Request(i, now, length, output_len, prompt_ids=ids, **more)


def pool_and_cost(random, least_host=0):
    """A pool with a tier of 0.5 to 4 times its slots and least_host more, and the costs of both."""
    slots = random.randint(5, 60) * 8
    host = random.randint(slots // 2, 4 * slots) + least_host
    size_gib, bandwidth = host * MODEL.kv_bytes_per_token / 2**30, 1e7 * random.random() + 1e5
    tiers = {"dram": TierSpec(size_gib, bandwidth, bandwidth, 1e-5)}
    on = replace(server(host_bandwidth=1e9), tiers=tiers)
    return PoolSpec(slots, LONGEST, (Tier("dram", host),)), analytic(on, overhead_s=1e-3)


def vllms_scheduler(random, policy, cost):
    kind = random.choice([VllmV1, partial(AsyncVllmV1, ignore_eos=True)])
    limits = {"max_num_batched_tokens": random.choice([16, 64, 512]), "max_num_seqs": 8}
    return kind(policy, Recompute(cost), **VLLM, **limits)


def served(requests, scheduler, cost, pool, fast_forward):
    """The policy and the recorder of a run of the requests that fit; nothing is kept."""
    fitting = [r for r in requests if r.final_len <= min(pool.num_slots, LONGEST)]
    options = {"pool": pool, "fast_forward": fast_forward, "recorder": OpsRecorder()}
    recorder = simulate(fitting, scheduler, cost, LONGEST, **options)
    policy = scheduler.state.policy
    policy.check()
    assert policy.usage().held == 0
    return policy, recorder


def assert_fast_equals_slow(run, golden, case):
    """run: a function of fast_forward, whose answer is that of `served`. The golden row of the
    case has what both recorded.
    """
    (fast, one), (slow, other) = run(fast_forward=True), run(fast_forward=False)
    assert_same(one, other)
    assert fast.counters() == slow.counters()
    assert one.ops == other.ops
    golden("whole_runs.csv", case, row_of_run(one, fast.counters()))
