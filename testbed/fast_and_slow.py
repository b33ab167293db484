"""Short simulations of a policy or a scheduler: fast-forwarded, step by step, again, and with
another future.

All must give the same, bit for bit; the last until the first of the outputs that differ has ended.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import product, zip_longest
from random import Random
from typing import Any, NamedTuple

from testbed.contract import ClauseBroken
from testbed.contract.clauses import overrides, pool_of, require
from testbed.contract.search import MakePolicy
from testbed.core.errors import PlugInError
from testbed.core.request import Request
from testbed.core.slots import Usage
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec, TierSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.engine.recorder import Recorder
from testbed.engine.simulation import Environment, simulate
from testbed.memory.policy import MemoryPolicy, PoolSpec
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.plan import Chunk, Plan
from testbed.sched.preemption import Recompute, Swap
from testbed.sched.scheduler import Scheduler
from testbed.sched.separate import SeparatePrefill

MODEL = ModelSpec("tiny", 2, 64, 4, 4, 16, 256, 2, 100, 4096)
TIERS = {"dram": TierSpec(1), "nvme": TierSpec(1, 1e7, 1e6, 1e-4, 1e-5)}
SERVER = ServerSpec("server", GpuSpec("gpu", 10**9, 1e9, 1e12, 1e8, 1e9), 1, tiers=TIERS)
LIMITS = {"max_num_batched_tokens": 64, "max_num_seqs": 12}
SCHEDULERS: tuple[type[Scheduler], ...] = (SeparatePrefill, MixedPrefill, ChunkedPrefill)
NUM_REQUESTS = 24
GAPS_PS = (10**8, 10**10)


class Decision(NamedTuple):
    """One plan: who computes what, who came and went and is there, by request id, and what the pool
    looks like then.
    """

    time_ps: int
    decodes: tuple[int, int, int]
    chunks: tuple[tuple[int, int, int, int, bool, int], ...]
    moved: tuple[tuple[int, ...], ...]
    used: Usage


def watched(kind: type[Scheduler], env: Environment, decisions: list[Decision]) -> type[Scheduler]:
    """The scheduler, each of whose plans is checked and written down."""

    def plan(this: Any) -> Plan:
        before = this.state.batch.extended
        built: Plan = kind.plan(this)
        require(10, isinstance(built, Plan), f"plan() answered {built!r}, which is no Plan")
        check_decodes(this, built, this.state.batch.extended - before)
        check_chunks(this, built)
        state, moved = (
            this.state,
            (built.preempted, built.swapped_in, built.rejected, this.state.running.values()),
        )
        chunks = ((c.group.request.request_id, c.seq.seq_id, *c[2:]) for c in built.chunks)
        groups = (tuple(group.request.request_id for group in some) for some in moved)
        decodes = built.decode_seqs, built.decode_context, built.decode_max_context
        decisions.append(
            Decision(int(env.now), decodes, tuple(chunks), tuple(groups), state.policy.usage())
        )
        return built

    return type(kind.__name__, (kind,), {"plan": plan})


def check_decodes(scheduler: Scheduler, plan: Plan, steps: int) -> None:
    """Clause 10: the plan counts all sequences that take a step, and reads no less than they do, or
    pads.
    """
    batch, policy = scheduler.state.batch, scheduler.policy
    require(10, steps in (0, 1), f"plan() extends the batch by {steps} steps; a plan takes one")
    stepping = [*batch] if steps else []
    stepping += [seq for group in plan.stepping for seq in group.sequences]
    read = [policy.num_stored(seq.num_slots) for seq in stepping]
    counted = plan.decode_seqs, plan.decode_context, plan.decode_max_context
    least = len(read), sum(read), max(read, default=0)
    enough = all(reported >= known for reported, known in zip(counted, least, strict=True))
    require(
        10,
        enough,
        f"plan() counts decodes (sequences, context, longest) as {counted}, and {least} take a "
        f"step",
    )
    at_most = plan.decode_seqs * plan.decode_max_context
    require(
        10,
        plan.decode_context <= at_most,
        f"plan() counts decodes as {counted}: more context than they can have",
    )
    if plan.guaranteed_steps:
        promised, claimed = policy.guaranteed_steps(batch), plan.guaranteed_steps
        reported = (
            f"plan() promises {claimed} more steps, of which the policy has promised {promised}"
        )
        require(10, claimed <= promised, reported)


def check_chunks(scheduler: Scheduler, plan: Plan) -> None:
    """Clause 10: a chunk continues the prompt of a running group where it ended, and has slots."""
    running, ends = scheduler.state.running, dict[int, int]()
    for chunk in plan.chunks:
        require(
            10, isinstance(chunk, Chunk) and chunk.new > 0 <= chunk.padding, f"plan() has {chunk}"
        )
        group, seq, end = chunk.group, chunk.seq, chunk.num_stored + chunk.new
        name = f"plan() computes tokens {chunk.num_stored} to {end} of {seq}"
        is_running = running.get(group.request.request_id) is group and seq in group.resident
        require(10, is_running, f"{name}, which is not running")
        reached = ends.get(seq.seq_id, seq.num_stored)
        require(10, chunk.num_stored <= reached, f"{name}, of which {reached} are stored")
        require(10, end <= seq.num_slots, f"{name}, which has {seq.num_slots} slots")
        ends[seq.seq_id] = end


ANY_EXTRA_S = defaultdict[str, float](lambda: 1e-5)  # whatever a policy counts by name
EFFICIENCIES = Efficiencies(
    overhead_s=1e-3,
    overhead_per_request_s=1e-4,
    repeated_read=0.3,
    copy_s=1e-5,
    extra_s=ANY_EXTRA_S,
)


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
        recorder = simulate(
            requests, served, cost, pool.max_len, pool=pool, fast_forward=fast_forward, env=env
        )
        return Served(
            recorder,
            dict(policy.counters()),
            decisions,
            served.reads_output_len or policy.reads_output_len,
        )


@dataclass(frozen=True)
class Served:
    """What a run left: its records, what the policy counted, what was decided when, whether a part
    reads lengths.
    """

    recorder: Recorder
    counters: Mapping[str, float]
    decisions: list[Decision]
    foresees: bool

    def ends(self) -> dict[int, int]:
        """When each request was answered, or turned away at its arrival, in ps."""
        columns = self.recorder.requests.columns()
        times = zip(columns["request_id"], columns["finish_ps"], columns["arrival_ps"], strict=True)
        return {int(request_id): int(max(finish, arrival)) for request_id, finish, arrival in times}


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
        name = (
            f"{scheduler.__name__} with {rule.__name__}, {NUM_REQUESTS} requests {gap_ps / 1e12} "
            f"s apart, {pool}"
        )
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
    """What a run does not agree in with one step by step, with the same again, or with one of
    another future.
    """
    fast, slow = case.serve(requests, prefix), case.serve(requests, prefix, fast_forward=False)
    if parts := unequal(fast, slow):
        return ClauseBroken(
            7, f"simulate() with fast_forward and without differ in {', '.join(parts)}"
        )
    if parts := unequal(fast, case.serve(requests, prefix)):
        return ClauseBroken(9, f"the same requests served again differ in {', '.join(parts)}")
    if fast.foresees:
        return None
    others = other_future(requests, fast.recorder.rejections)
    # A span of a scheduler that plans ahead ends with a plan made before the output has ended that
    # ends the span: such runs are compared step by step.
    in_spans = not case.scheduler.plans_ahead
    seen, changed = fast if in_spans else slow, case.serve(others, prefix, fast_forward=in_spans)
    ends, other_ends = seen.ends(), changed.ends()
    differing = [
        one.request_id for one, other in zip(requests, others, strict=True) if one != other
    ]
    until_ps = min((min(ends[i], other_ends[i]) for i in differing), default=0)
    for one, other in zip_longest(
        *([d for d in run.decisions if d.time_ps < until_ps] for run in (seen, changed))
    ):
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
    parts = [
        field.name
        for field in fields(a.totals)
        if getattr(a.totals, field.name) != getattr(b.totals, field.name)
    ]
    parts += ["end or rejections"] if (a.end_ps, a.rejections) != (b.end_ps, b.rejections) else []
    others = b.requests.columns()
    parts += [
        name
        for name, column in a.requests.columns().items()
        if column.tolist() != others[name].tolist()
    ]
    return parts + (["counters()"] if one.counters != other.counters else [])


def registered(policy: MemoryPolicy, num_tokens: int) -> int:
    """Register a prefix of num_tokens tokens where the policy shares and can store it; its length,
    or 0.
    """
    if not num_tokens or not policy.shares or not overrides(policy, "register_prefix"):
        return 0
    try:
        policy.register_prefix(num_tokens)
    except ValueError:
        return 0
    return num_tokens


def workload(policy: MemoryPolicy, max_len: int, prefix: int, gap_ps: int) -> Iterator[Request]:
    """Requests of one sequence, groups and beams, some of which share a beginning or have the
    registered prefix.
    """
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
