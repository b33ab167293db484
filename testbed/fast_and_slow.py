"""Short simulations of a policy or a scheduler: fast-forwarded, step by step, again, and with another future.

All must give the same, bit for bit; the last until the first of the outputs that differ has ended.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import product, zip_longest
from random import Random
from typing import Any

from testbed.contract import ClauseBroken
from testbed.contract.clauses import overrides, pool_of
from testbed.contract.search import MakePolicy
from testbed.core.errors import PlugInError
from testbed.core.request import Request
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec, TierSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.memory.policy import MemoryPolicy, PoolSpec
from testbed.plan_claims import Decision, watched
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute, Swap
from testbed.sched.scheduler import Scheduler
from testbed.sched.separate import SeparatePrefill
from testbed.sim.recorder import Recorder
from testbed.sim.simulation import Environment, simulate

MODEL = ModelSpec("tiny", 2, 64, 4, 4, 16, 256, 2, 100, 4096)
TIERS = {"dram": TierSpec(1), "nvme": TierSpec(1, 1e7, 1e6, 1e-4, 1e-5)}
SERVER = ServerSpec("server", GpuSpec("gpu", 10**9, 1e9, 1e12, 1e8, 1e9), 1, tiers=TIERS)


class OneCost(dict[str, float]):
    """Seconds of whatever a policy counts by name."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> float:
        return 1e-5


EFFICIENCIES = Efficiencies(overhead_s=1e-3, overhead_per_request_s=1e-4, copy_s=1e-5, extra_s=OneCost())
LIMITS = {"max_num_batched_tokens": 64, "max_num_seqs": 12}
SCHEDULERS: tuple[type[Scheduler], ...] = (SeparatePrefill, MixedPrefill, ChunkedPrefill)
NUM_REQUESTS = 24
GAPS_PS = (10**8, 10**10)


@dataclass(frozen=True)
class Case:
    """What is simulated: a policy in a pool, a scheduler with its parameters, a preemption rule."""

    make: MakePolicy
    pool: PoolSpec
    scheduler: type[Scheduler]
    rule: Any
    parameters: Mapping[str, Any]

    def serve(self, requests: list[Request], prefix: int, fast_forward: bool = True) -> "Served":
        policy, decisions, env = self.make(self.pool), list[Decision](), Environment(0)
        registered(policy, prefix)
        cost = AnalyticCost(MODEL, SERVER, EFFICIENCIES)
        scheduler: Any = watched(self.scheduler, env, decisions)
        served = scheduler(policy, self.rule(cost), **self.parameters)
        pool = pool_of(policy, self.pool)
        recorder = simulate(requests, served, cost, pool.max_len, pool=pool, fast_forward=fast_forward, env=env)
        return Served(recorder, dict(policy.counters()), decisions, served.reads_output_len or policy.reads_output_len)


@dataclass(frozen=True)
class Served:
    """What a run left: its records, what the policy counted, what was decided when, whether a part reads lengths."""

    recorder: Recorder
    counters: Mapping[str, float]
    decisions: list[Decision]
    foresees: bool

    def ends(self) -> dict[int, int]:
        """When each request was answered, or turned away at its arrival, in ps."""
        columns = self.recorder.requests.columns()
        times = zip(columns["request_id"], columns["finish_ps"], columns["arrival_ps"], strict=True)
        return {int(request_id): int(max(finish, arrival)) for request_id, finish, arrival in times}

    def before(self, time_ps: int) -> list[Decision]:
        return [decision for decision in self.decisions if decision.time_ps < time_ps]


def differs(
    make: MakePolicy,
    pool: PoolSpec,
    schedulers: Iterable[type[Scheduler]] = SCHEDULERS,
    parameters: Mapping[str, Any] = LIMITS,
) -> ClauseBroken | None:
    """What simulations do not agree in: clause 7, 9 or 10; None where they agree."""
    rules: list[Any] = [Recompute, Swap] if make(pool).moves_tiers else [Recompute]
    for scheduler, rule, gap_ps in product(schedulers, rules, GAPS_PS):
        policy = make(pool)
        prefix = registered(policy, pool.max_len // 4)
        requests = list(workload(policy, pool.max_len, prefix, gap_ps))
        name = f"{scheduler.__name__} with {rule.__name__}, {NUM_REQUESTS} requests {gap_ps / 1e12} s apart, {pool}"
        try:
            broken = disagreement(Case(make, pool, scheduler, rule, parameters), requests, prefix)
        except ClauseBroken as error:
            broken = error
        except PlugInError as error:
            broken = ClauseBroken(10, f"a simulation failed: {error}")
        if broken:
            broken.calls = [name]
            return broken
    return None


def disagreement(case: Case, requests: list[Request], prefix: int) -> ClauseBroken | None:
    """What a run does not agree in with one step by step, with the same again, or with one of another future."""
    fast, slow = case.serve(requests, prefix), case.serve(requests, prefix, fast_forward=False)
    if parts := unequal(fast, slow):
        return ClauseBroken(7, f"simulate() with fast_forward and without differ in {', '.join(parts)}")
    if parts := unequal(fast, case.serve(requests, prefix)):
        return ClauseBroken(9, f"the same requests served again differ in {', '.join(parts)}")
    if fast.foresees:
        return None
    others = other_future(requests, fast.recorder.rejections)
    changed = case.serve(others, prefix)
    ends, other_ends = fast.ends(), changed.ends()
    differing = [one.request_id for one, other in zip(requests, others, strict=True) if one != other]
    until_ps = min((min(ends[i], other_ends[i]) for i in differing), default=0)
    for one, other in zip_longest(fast.before(until_ps), changed.before(until_ps)):
        if one != other:
            return ClauseBroken(10, f"it decides by outputs that are not over: {one}, or {other}")
    return None


def other_future(requests: list[Request], rejected: Container[int]) -> list[Request]:
    """The same requests; of every second one that is served, the output ends earlier."""
    random = Random(1)
    return [
        one._replace(output_len=random.randint(one.output_len // 2 + 1, one.output_len))
        if one.request_id % 2 and one.request_id not in rejected and one.output_len > 8
        else one
        for one in requests
    ]


def unequal(one: Served, other: Served) -> list[str]:
    a, b = one.recorder, other.recorder
    parts = [field.name for field in fields(a.totals) if getattr(a.totals, field.name) != getattr(b.totals, field.name)]
    parts += ["end or rejections"] if (a.end_ps, a.rejections) != (b.end_ps, b.rejections) else []
    others = b.requests.columns()
    parts += [name for name, column in a.requests.columns().items() if column.tolist() != others[name].tolist()]
    return parts + (["counters()"] if one.counters != other.counters else [])


def registered(policy: MemoryPolicy, num_tokens: int) -> int:
    """Register a prefix of num_tokens tokens where the policy shares and can store it; its length, or 0."""
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
        num_seqs = 1 if policy.single_sequence else random.choice([1, 1, 2, 3])
        shared = random.randint(0, prompt_len)
        ids = tuple(token if token < shared else -1 - i for token in range(prompt_len))
        yield Request(
            i,
            arrival_ps,
            prompt_len,
            random.randint(1, max_len // 2),
            num_seqs,
            beam=num_seqs > 1 and random.random() < 0.5,
            registered_prefix=prefix if has_prefix else 0,
            prompt_ids=ids if policy.caches_prefixes else None,
        )
