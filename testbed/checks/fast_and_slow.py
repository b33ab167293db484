"""Short simulations of a policy, a scheduler or a preemption rule: fast-forwarded, step by step,
again, and with another future. All must give the same, bit for bit; the last until the first of the
outputs that differ has ended.

The clauses of schedulers: 7 what many steps at once give equals the same steps one by one; 9 the
same requests give the same run; 10 a plan says what happens, and does not depend on outputs that
are not over; 17 a plan has at most max_num_batched_tokens tokens unless it has a single item, and
at most max_num_seqs requests run; 18 every request is in one place until it is answered; 19 none
waits while nothing runs; 20 a plan that computes nothing and sets wake_ps wakes later than now.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product, zip_longest
from random import Random
from types import MappingProxyType
from typing import Any

from testbed.checks.contract.clauses import ClauseBroken, call_raised
from testbed.checks.contract.questions import MakePolicy
from testbed.checks.contract.search import histories_of, shortest, shown_pool, without_runs
from testbed.checks.scheduler_checks import Decision, Watcher, watched
from testbed.core.errors import InputError, PlugInError
from testbed.core.request import Request
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec, TierSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.cost.model import CostModel
from testbed.cost.software import SoftwareTimes
from testbed.engine.recorder import Recorder
from testbed.engine.simulation import Environment, simulate
from testbed.memory.capabilities import Capabilities, capabilities_of
from testbed.memory.policy import PoolSpec
from testbed.run.oracles import is_oracle, with_lengths
from testbed.run.parts import Part
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import PreemptionRule, Recompute, Swap
from testbed.sched.scheduler import Scheduler
from testbed.sched.separate import SeparatePrefill

MODEL = ModelSpec(
    name="tiny",
    num_layers=2,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=4,
    head_size=16,
    ffn_size=256,
    ffn_matrices=2,
    vocab_size=100,
    max_len=4096,
)
TIERS = {
    "dram": TierSpec(1),
    "nvme": TierSpec(
        size_gib=1, read_bandwidth=1e7, write_bandwidth=1e6, latency_s=1e-4, extent_s=1e-5
    ),
}
SERVER = ServerSpec(
    "server",
    GpuSpec(
        name="gpu",
        memory_bytes=10**9,
        memory_bandwidth=1e9,
        fp16_flops=1e12,
        host_bandwidth=1e8,
        link_bandwidth=1e9,
    ),
    num_gpus=1,
    tiers=TIERS,
)
LIMITS = {"max_num_batched_tokens": 64, "max_num_seqs": 12}
SCHEDULERS: tuple[type[Scheduler], ...] = (SeparatePrefill, MixedPrefill, ChunkedPrefill)
NUM_REQUESTS = 24
MAX_TRIES = 60  # of fewer requests
GAPS_PS = (10**8, 10**10)
MakeRule = Callable[[CostModel], PreemptionRule]

ANY_EXTRA_S = defaultdict[str, float](lambda: 1e-5)  # whatever a policy counts by name
EFFICIENCIES = Efficiencies(launch_s=2e-3, repeated_read=0.3, copy_s=1e-5)
SOFTWARE = SoftwareTimes(overhead_s=1e-3, overhead_per_request_s=1e-4, extra_s=ANY_EXTRA_S)


def roofline() -> AnalyticCost:
    """The costs of the checks' small model, some time for each part of an iteration."""
    return AnalyticCost(MODEL, SERVER, EFFICIENCIES, SOFTWARE)


@dataclass(frozen=True)
class Case:
    """The simulated case: a policy in a pool, a scheduler with parameters, a preemption rule."""

    make: MakePolicy
    pool: PoolSpec
    scheduler: type[Scheduler]
    rule: MakeRule
    parameters: Mapping[str, Any]

    def serve(self, requests: list[Request], prefix: int, fast_forward: bool = True) -> "Served":
        """Serve the requests by a policy and a scheduler made anew, which is watched in every plan.
        prefix: tokens of the registered prefix, 0 for none. fast_forward: several iterations are
        taken at once if that changes nothing.
        """
        lengths = dict[int, int]()
        seen = MappingProxyType(lengths)
        policy = with_lengths(self.make, seen)(self.pool)
        memory, env = capabilities_of(policy), Environment(0)
        watcher = Watcher(env, self.parameters)
        registered(memory, prefix)
        cost = roofline()
        scheduler: Any = with_lengths(watched(self.scheduler, watcher), seen)
        rule = with_lengths(self.rule, seen)(cost)
        served = scheduler(policy, rule, **self.parameters)
        pool = memory.pool_in_slots(self.pool)
        recorder = simulate(
            requests,
            served,
            cost,
            pool.max_len,
            pool=pool,
            fast_forward=fast_forward,
            env=env,
            lengths=lengths,
        )
        foresees = any(is_oracle(part) for part in (self.make, self.scheduler, self.rule))
        return Served(recorder, dict(policy.counters()), watcher.decisions, foresees)


@dataclass(frozen=True)
class Served:
    """The traces of a run: its records, what the policy counted, what was decided when, whether a
    part reads lengths.
    """

    recorder: Recorder
    counters: Mapping[str, float]
    decisions: list[Decision]
    foresees: bool

    def ends(self) -> dict[int, int]:
        """The time (ps) at which each request was answered, or rejected at its arrival."""
        columns = self.recorder.requests.columns()
        times = zip(columns["request_id"], columns["finish_ps"], columns["arrival_ps"], strict=True)
        return {int(request_id): int(max(finish, arrival)) for request_id, finish, arrival in times}


def differs(
    make: MakePolicy,
    pool: PoolSpec,
    schedulers: Iterable[type[Scheduler]] = SCHEDULERS,
    parameters: Mapping[str, Any] = LIMITS,
    rules: Sequence[MakeRule] = (),
) -> ClauseBroken | None:
    """The disagreement of simulations: clause 7, 9 or 10; None if they agree.

    rules: the preemption rules, by default those that the policy takes.
    """
    swaps = capabilities_of(make(pool)).swaps is not None
    for scheduler, rule, gap_ps in product(
        schedulers, rules or ((Recompute, Swap) if swaps else (Recompute,)), GAPS_PS
    ):
        memory = capabilities_of(make(pool))
        prefix = registered(memory, pool.max_len // 4)
        several = histories_of(make, pool).serves_several
        requests = list(workload(memory, several, pool.max_len, prefix, gap_ps))
        name = (
            f"{scheduler.__name__} with {Part(rule).name.rpartition('.')[2]}, {NUM_REQUESTS} "
            f"requests {gap_ps / 1e12} s apart, {shown_pool(memory, pool)}"
        )
        case = Case(make, pool, scheduler, rule, parameters)
        broken = broken_by(case, requests, prefix)
        if broken is not None:
            return shrunk(case, requests, prefix, broken, name)
    return None


def broken_by(case: Case, requests: list[Request], prefix: int) -> ClauseBroken | None:
    """The clause that is broken if a case serves these requests."""
    try:
        return disagreement(case, requests, prefix)
    except ClauseBroken as error:
        return error
    except InputError:  # it may need another policy
        raise
    except PlugInError as error:
        return ClauseBroken(10, f"a simulation failed: {error}")
    except Exception as error:
        return call_raised("a simulation", error)


def shrunk(
    case: Case, requests: list[Request], prefix: int, broken: ClauseBroken, name: str
) -> ClauseBroken:
    """`broken`'s clause, broken by the fewest and shortest requests that MAX_TRIES tries find."""

    def fails(candidate: list[Request]) -> bool:
        again = broken_by(case, candidate, prefix)
        return again is not None and again.clause == broken.clause

    fewest = shortest(requests, fails, fewer_requests, MAX_TRIES)
    again = broken_by(case, fewest, prefix)
    broken = again if again is not None and again.clause == broken.clause else broken
    broken.calls = [name, *map(described, fewest)]
    return broken


def fewer_requests(requests: list[Request]) -> Iterator[list[Request]]:
    """The requests but for some, the longest runs first; then with one length halved."""
    yield from without_runs(requests)
    for i, request in enumerate(requests):
        for name in ("prompt_len", "output_len"):
            least = request.registered_prefix + 1 if name == "prompt_len" else 1
            half = getattr(request, name) // 2
            if half >= least:
                shorter = request._replace(**{name: half})
                if request.prompt_ids is not None:
                    shorter = shorter._replace(prompt_ids=request.prompt_ids[: shorter.prompt_len])
                yield [*requests[:i], shorter, *requests[i + 1 :]]


def described(request: Request) -> str:
    """A request, for a reader."""
    lengths = f"{request.prompt_len} + {request.output_len} tokens"
    kind = f"beam of {request.num_seqs}" if request.beam else f"{request.num_seqs} sequences"
    several = f", {kind}" if request.num_seqs > 1 else ""
    return f"request {request.request_id} at {request.arrival_ps} ps: {lengths}{several}"


def disagreement(case: Case, requests: list[Request], prefix: int) -> ClauseBroken | None:
    """The disagreement of a run with one step by step, with the same again, or with one of another
    future.
    """
    fast = case.serve(requests, prefix)
    if parts := unequal(fast, case.serve(requests, prefix)):
        return ClauseBroken(9, f"the same requests served again differ in {', '.join(parts)}")
    slow = case.serve(requests, prefix, fast_forward=False)
    if parts := unequal(fast, slow):
        return ClauseBroken(
            7, f"simulate() with fast_forward and without differ in {', '.join(parts)}"
        )
    return None if fast.foresees else _seen_future(case, requests, prefix, fast, slow)


def _seen_future(
    case: Case, requests: list[Request], prefix: int, fast: Served, slow: Served
) -> ClauseBroken | None:
    """The first decision, before any output ends at another token, that is another one in a run
    whose outputs end earlier; fast, slow: the runs whose outputs are the requests'.
    """
    others = other_future(requests, fast.recorder.rejections)
    # A span of a scheduler that plans ahead ends with a plan made before the output has ended that
    # ends the span: such runs are compared step by step.
    in_spans = not case.scheduler.plans_ahead
    seen = fast if in_spans else slow
    changed = case.serve(others, prefix, fast_forward=in_spans)
    ends, other_ends = seen.ends(), changed.ends()
    differing = [
        request.request_id
        for request, other in zip(requests, others, strict=True)
        if request != other
    ]
    until_ps = min((min(ends[i], other_ends[i]) for i in differing), default=0)
    for decision, other in zip_longest(
        *([d for d in run.decisions if d.time_ps < until_ps] for run in (seen, changed))
    ):
        if decision != other:
            return ClauseBroken(
                10, f"it decides by outputs that are not over: {decision}, or {other}"
            )
    return None


def other_future(requests: list[Request], rejected: Container[int]) -> list[Request]:
    """The requests, of which every second one that is served has an output that ends earlier."""
    random = Random(1)
    return [
        request._replace(output_len=random.randint(request.output_len // 2 + 1, request.output_len))
        if request.request_id % 2 and request.request_id not in rejected and request.output_len > 8
        else request
        for request in requests
    ]


def unequal(first: Served, other: Served) -> list[str]:
    """The names of what differs between two runs: totals, the end or rejections, columns of
    requests, the policy's counters.
    """
    run, again = first.recorder, other.recorder
    parts = [
        field.name
        for field in fields(run.totals)
        if getattr(run.totals, field.name) != getattr(again.totals, field.name)
    ]
    if (run.end_ps, run.rejections) != (again.end_ps, again.rejections):
        parts.append("end or rejections")
    others = again.requests.columns()
    parts += [
        name
        for name, column in run.requests.columns().items()
        if column.tolist() != others[name].tolist()
    ]
    if first.counters != other.counters:
        parts.append("counters()")
    return parts


def registered(memory: Capabilities, num_tokens: int) -> int:
    """Register a prefix of num_tokens tokens if the policy can store it; its length, or 0."""
    if not num_tokens or memory.registers_prefixes is None:
        return 0
    try:
        memory.registers_prefixes.register_prefix(num_tokens)
    except ValueError:
        return 0
    return num_tokens


def workload(
    memory: Capabilities, serves_several: bool, max_len: int, prefix: int, gap_ps: int
) -> Iterator[Request]:
    """Requests of one sequence, groups and beams, some of which share a beginning or have the
    registered prefix.
    """
    random, arrival_ps = Random(0), 0
    for i in range(NUM_REQUESTS):
        arrival_ps += random.randint(0, gap_ps)
        has_prefix = prefix > 0 and random.random() < 0.5
        prompt_len = random.randint(prefix + 1 if has_prefix else 1, max_len // 2)
        num_seqs = random.choice([1, 1, 2, 3]) if serves_several else 1
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
            prompt_ids=ids if memory.publishes is not None else None,
        )
