"""Checks of a scheduler at every call of a run (clauses 17 to 20), and its decisions."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from testbed.checks.contract.clauses import require
from testbed.core.request import Incoming
from testbed.core.sequence import SequenceGroup
from testbed.core.slots import Usage
from testbed.cost.model import UNBOUNDED
from testbed.engine.simulation import Environment
from testbed.sched.plan import Chunk, Outcome, Plan, Results
from testbed.sched.scheduler import Scheduler


class Decision(NamedTuple):
    """One plan: the tokens that requests compute, the requests that came, went and are there, by
    id, and the state of the pool then.
    """

    time_ps: int
    decodes: tuple[int, int, int]
    chunks: tuple[tuple[int, int, int, int, bool, int], ...]
    moved: tuple[tuple[int, ...], ...]
    used: Usage


class Watcher:
    """Checks of every plan of a scheduler, and the requests that it has not answered yet."""

    def __init__(self, env: Environment, limits: Mapping[str, Any]) -> None:
        self.env = env
        self.decisions: list[Decision] = []
        self.unanswered: set[int] = set()
        self._budget: int | None = limits.get("max_num_batched_tokens")
        self._max_groups: int | None = limits.get("max_num_seqs")

    def check(self, scheduler: Scheduler, plan: Plan, steps: int, promised: int) -> None:
        """The plan extends the batch by `steps` of the `promised` steps of the policy."""
        check_decodes(scheduler, plan, steps, promised)
        check_chunks(scheduler, plan)
        for group in plan.rejected:
            self.unanswered.discard(group.request_id)
        self._check_limits(scheduler, plan)
        self.check_requests(scheduler)
        self._check_progress(scheduler, plan)
        self.decisions.append(decision_of(scheduler, plan, int(self.env.now)))

    def _check_limits(self, scheduler: Scheduler, plan: Plan) -> None:
        """Clause 17; an item larger than the budget may run alone."""
        num_tokens = plan.decode_seqs + sum(chunk.new for chunk in plan.chunks)
        num_items = plan.decode_seqs + len(plan.chunks)
        if self._budget is not None and num_items > 1:
            reported = f"plan() computes {num_tokens} tokens in an iteration of {self._budget}"
            require(17, num_tokens <= self._budget, reported)
        num_groups = len(scheduler.state.running)
        if self._max_groups is not None and num_groups > 1:
            reported = f"{num_groups} requests run, of at most {self._max_groups}"
            require(17, num_groups <= self._max_groups, reported)

    def check_requests(self, scheduler: Scheduler) -> None:
        """Clause 18."""
        state = scheduler.state
        groups = [*state.waiting, *state.loading, *state.running.values(), *state.swapped]
        listed = [group.request_id for group in groups]
        if len(set(listed)) < len(listed):
            twice = sorted({request_id for request_id in listed if listed.count(request_id) > 1})
            require(18, False, f"requests {twice} are in two places")
        if lost := sorted(self.unanswered.difference(listed)):
            require(18, False, f"requests {lost} are neither answered nor waiting nor running")

    def _check_progress(self, scheduler: Scheduler, plan: Plan) -> None:
        """Check clauses 19 and 20 of a plan that computes nothing."""
        if plan or plan.rejected or any(ops.background for ops in plan.ops):
            return
        state, now_ps = scheduler.state, int(self.env.now)
        wakes = plan.wake_ps != UNBOUNDED
        later = not wakes or plan.wake_ps > now_ps
        require(20, later, f"an idle plan of {now_ps} ps wakes at {plan.wake_ps} ps")
        may_wait = wakes or plan.preempted_any or scheduler.memory.transfers is not None
        if state.waiting and not may_wait and not (state.running or state.swapped):
            waiting = state.waiting[0].request_id
            require(19, False, f"request {waiting} waits, and nothing runs")


def decision_of(scheduler: Scheduler, plan: Plan, now_ps: int) -> Decision:
    """The decisions of a plan."""
    state = scheduler.state
    moved = plan.preempted, plan.swapped_in, plan.rejected, state.running.values()
    chunks = ((c.group.request_id, c.seq.seq_id, *c[2:]) for c in plan.chunks)
    groups = (tuple(group.request_id for group in some) for some in moved)
    decodes = plan.decode_seqs, plan.decode_context, plan.decode_max_context
    return Decision(
        time_ps=now_ps,
        decodes=decodes,
        chunks=tuple(chunks),
        moved=tuple(groups),
        used=state.policy.usage(),
    )


def watched(kind: type[Scheduler], watcher: Watcher) -> type[Scheduler]:
    """The scheduler, each of whose plans is checked and written down."""

    def add(this: Any, request: Incoming) -> SequenceGroup:
        watcher.unanswered.add(request.request_id)
        group = kind.add(this, request)
        watcher.check_requests(this)
        return group

    def plan(this: Any) -> Plan:
        watcher.check_requests(this)
        batch = this.state.batch
        before = batch.extended
        promised = this.memory.guaranteed_steps(batch) if batch.sequences else 0
        built: Plan = kind.plan(this)
        require(10, isinstance(built, Plan), f"plan() answered {built!r}, which is no Plan")
        watcher.check(this, built, batch.extended - before, promised)
        return built

    def commit(this: Any, plan: Plan, steps: int, results: Results) -> Outcome:
        outcome = kind.commit(this, plan, steps, results)
        for group in outcome.finished:
            watcher.unanswered.discard(group.request_id)
        watcher.check_requests(this)
        return outcome

    return type(kind.__name__, (kind,), {"add": add, "plan": plan, "commit": commit})


def check_decodes(scheduler: Scheduler, plan: Plan, steps: int, promised: int) -> None:
    """Clause 10: the plan counts all sequences that take a step, and reads no less than they do, or
    pads. promised: the steps that the policy promised before the plan was made.
    """
    batch, memory = scheduler.state.batch, scheduler.memory
    require(10, steps in (0, 1), f"plan() extends the batch by {steps} steps; a plan takes one")
    stepping = [*batch] if steps else []
    stepping += [seq for group in plan.stepping for seq in group.sequences]
    read = [memory.num_stored(seq.prompt_len, seq.num_slots) for seq in stepping]
    counted = plan.decode_seqs, plan.decode_context, plan.decode_max_context
    least = len(read), sum(read), max(read, default=0)
    enough = all(reported >= necessary for reported, necessary in zip(counted, least, strict=True))
    require(
        10,
        enough,
        f"plan() counts decodes (sequences, context, longest) as {counted}, and {least} take a "
        "step",
    )
    at_most = plan.decode_seqs * plan.decode_max_context
    require(
        10,
        plan.decode_context <= at_most,
        f"plan() counts decodes as {counted}: more context than they can have",
    )
    if plan.guaranteed_steps:
        claimed = plan.guaranteed_steps
        promised = max(memory.guaranteed_steps(batch), promised - steps)
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
        is_running = running.get(group.request_id) is group and seq in group.resident
        require(10, is_running, f"{name}, which is not running")
        reached = ends.get(seq.seq_id, seq.num_stored)
        require(10, chunk.num_stored <= reached, f"{name}, of which {reached} are stored")
        require(10, end <= seq.num_slots, f"{name}, which has {seq.num_slots} slots")
        ends[seq.seq_id] = end
