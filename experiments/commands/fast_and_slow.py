"""Short simulations of a memory policy, each fast-forwarded and step by step: both must give the same, bit for bit."""

from collections.abc import Iterator
from dataclasses import fields
from itertools import product
from random import Random

from testbed.contract import ClauseBroken
from testbed.contract.clauses import overrides
from testbed.contract.search import MakePolicy
from testbed.core.errors import PlugInError
from testbed.core.request import Request
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.memory.policy import MemoryPolicy, PoolSpec
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute, Swap
from testbed.sched.separate import SeparatePrefill
from testbed.sim.recorder import Recorder
from testbed.sim.simulation import simulate

MODEL = ModelSpec("tiny", 2, 64, 4, 4, 16, 256, 2, 100, 4096)
SERVER = ServerSpec("server", GpuSpec("gpu", 10**9, 1e9, 1e12, 1e8, 1e9), 1)
EFFICIENCIES = Efficiencies(overhead_s=1e-3, overhead_per_request_s=1e-4, copy_s=1e-5)
LIMITS = {"max_num_batched_tokens": 64, "max_num_seqs": 12}
NUM_REQUESTS = 24
GAPS_PS = (10**8, 10**10)


def differs(make: MakePolicy, pool: PoolSpec) -> ClauseBroken | None:
    """What a fast-forwarded simulation and one step by step do not agree in: clause 7; None where they agree."""
    rules = [Recompute, Swap] if make(pool).moves_tiers else [Recompute]
    for scheduler, rule, gap_ps in product((SeparatePrefill, MixedPrefill, ChunkedPrefill), rules, GAPS_PS):
        runs, counters = list[Recorder](), list[object]()
        policy = make(pool)
        prefix = registered(policy, pool.max_len // 4)
        requests = list(workload(policy, pool.max_len, prefix, gap_ps))
        name = f"{scheduler.__name__} with {rule.__name__}, {NUM_REQUESTS} requests {gap_ps / 1e12} s apart, {pool}"
        try:
            for fast_forward in (True, False):
                policy = make(pool)
                registered(policy, prefix)
                served = scheduler(policy, rule(), **LIMITS)
                cost = AnalyticCost(MODEL, SERVER, EFFICIENCIES)
                runs.append(simulate(requests, served, cost, pool.max_len, fast_forward=fast_forward))
                counters.append(dict(policy.counters()))
        except PlugInError as error:
            return failure(10, f"a simulation failed: {error}", name)
        parts = [*unequal(*runs), *(["counters()"] if counters[0] != counters[1] else [])]
        if parts:
            return failure(7, f"simulate() with fast_forward and without differ in {', '.join(parts)}", name)
    return None


def failure(clause: int, message: str, name: str) -> ClauseBroken:
    """The clause, and the simulation that breaks it."""
    broken = ClauseBroken(clause, message)
    broken.calls = [name]
    return broken


def unequal(fast: Recorder, slow: Recorder) -> Iterator[str]:
    """The parts in which two runs differ."""
    for field in fields(fast.totals):
        if getattr(fast.totals, field.name) != getattr(slow.totals, field.name):
            yield field.name
    if (fast.end_ps, fast.rejections) != (slow.end_ps, slow.rejections):
        yield "end or rejections"
    others = slow.requests.columns()
    yield from (name for name, column in fast.requests.columns().items() if column.tolist() != others[name].tolist())


def registered(policy: MemoryPolicy, num_tokens: int) -> int:
    """Register a prefix of num_tokens tokens where the policy shares and has room for it; its length, or 0."""
    if not num_tokens or not policy.shares or not overrides(policy, "register_prefix"):
        return 0
    try:
        policy.register_prefix(num_tokens)
    except ValueError:
        return 0
    return num_tokens


def workload(policy: MemoryPolicy, max_len: int, prefix: int, gap_ps: int) -> Iterator[Request]:
    """Requests of one sequence, groups and beams, some of which share a beginning or have the registered prefix."""
    random, arrival_ps = Random(0), 0
    for i in range(NUM_REQUESTS):
        arrival_ps += random.randint(0, gap_ps)
        has_prefix = prefix > 0 and random.random() < 0.5
        prompt_len = random.randint(prefix + 1 if has_prefix else 1, max_len // 2)
        num_seqs = random.choice([1, 1, 2, 3])
        shared = random.randint(0, prompt_len)
        ids = tuple(token if token < shared else -1 - i for token in range(prompt_len))
        yield Request(
            i,
            arrival_ps,
            prompt_len,
            random.randint(1, max_len // 2),
            num_seqs,
            beam=num_seqs > 1 and random.random() < 0.5,
            prefix=prefix if has_prefix else 0,
            prompt_ids=ids if policy.caches_prefixes else None,
        )
