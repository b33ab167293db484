"""A scheduler's plan compared with groups, batch and policy; and what it decided, to compare runs."""

from typing import Any, NamedTuple

from testbed.contract.clauses import require
from testbed.core.slots import Usage
from testbed.sched.plan import Chunk, Plan
from testbed.sched.scheduler import Scheduler
from testbed.sim.simulation import Environment


class Decision(NamedTuple):
    """One plan: who computes what, who came and went and is there, by request id, and what the pool looks like then."""

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
        decisions.append(decision(int(env.now), this, built))
        return built

    return type(kind.__name__, (kind,), {"plan": plan})


def decision(now_ps: int, scheduler: Scheduler, plan: Plan) -> Decision:
    state = scheduler.state
    chunks = [(c.group.request.request_id, c.seq.seq_id, c.new, c.num_stored, c.last, c.padding) for c in plan.chunks]
    groups = (plan.preempted, plan.swapped_in, plan.rejected, state.running.values())
    return Decision(
        now_ps,
        (plan.decode_seqs, plan.decode_context, plan.decode_max_context),
        tuple(chunks),
        tuple(tuple(group.request.request_id for group in some) for some in groups),
        scheduler.policy.usage(),
    )


def check_decodes(scheduler: Scheduler, plan: Plan, steps: int) -> None:
    """Clause 10: the plan counts all sequences that take a step, and reads no less than they do, or pads."""
    batch, policy = scheduler.state.batch, scheduler.policy
    require(10, steps in (0, 1), f"plan() extends the batch by {steps} steps; a plan takes one")
    stepping = [*batch] if steps else []
    stepping += [seq for group in plan.swapped_in for seq in group.sequences if seq.num_slots > seq.num_stored]
    read = [policy.num_stored(seq.num_slots) for seq in stepping]
    counted = plan.decode_seqs, plan.decode_context, plan.decode_max_context
    least = len(read), sum(read), max(read, default=0)
    enough = all(reported >= known for reported, known in zip(counted, least, strict=True))
    require(10, enough, f"plan() counts decodes (sequences, context, longest) as {counted}, and {least} take a step")
    at_most = plan.decode_seqs * plan.decode_max_context
    require(10, plan.decode_context <= at_most, f"plan() counts decodes as {counted}: more context than they can have")
    if plan.guaranteed_steps:
        promised, claimed = policy.guaranteed_steps(batch), plan.guaranteed_steps
        reported = f"plan() promises {claimed} more steps, of which the policy has promised {promised}"
        require(10, claimed <= promised, reported)


def check_chunks(scheduler: Scheduler, plan: Plan) -> None:
    """Clause 10: a chunk continues the prompt of a running group where it ended, and has slots."""
    running, ends = scheduler.state.running, dict[int, int]()
    for chunk in plan.chunks:
        require(10, isinstance(chunk, Chunk) and chunk.new > 0 <= chunk.padding, f"plan() has {chunk}")
        group, seq, end = chunk.group, chunk.seq, chunk.num_stored + chunk.new
        name = f"plan() computes tokens {chunk.num_stored} to {end} of {seq}"
        is_running = running.get(group.request.request_id) is group and seq in group.resident
        require(10, is_running, f"{name}, which is not running")
        reached = ends.get(seq.seq_id, seq.num_stored)
        require(10, chunk.num_stored <= reached, f"{name}, of which {reached} are stored")
        require(10, end <= seq.num_slots, f"{name}, which has {seq.num_slots} slots")
        ends[seq.seq_id] = end
