"""What the pool looked like over time: a run with its policy watched, as frames to draw."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import simpy

from testbed.core.request import Request, Workload
from testbed.core.slots import Extent, NonSequenceSlots
from testbed.cost.model import UNBOUNDED, CostModel
from testbed.engine.policy_facts import is_measured_in_spans
from testbed.engine.recorder import Recorder
from testbed.engine.simulation import simulate
from testbed.memory.policy import MemoryPolicy, PoolSpec
from testbed.memory.traced import Held, Traced
from testbed.sched.beams import BeamModel
from testbed.sched.scheduler import Scheduler

MAX_FRAMES = 1500
BLOCK_SIZE = 16  # in which a pool is shown whose policy knows no blocks


class Frame(NamedTuple):
    """The pool exactly as it was in [start_ps, end_ps); it also stands for later ones up to the
    next frame.

    pools: the slots of no table, on the device and then in each tier that stores prefixes; adjacent
    ones together.
    """

    start_ps: int
    end_ps: int
    held: dict[int, Held]
    pools: tuple[NonSequenceSlots, ...]


@dataclass(slots=True)
class MemoryTrace:
    """Frames in order of time, and the requests that they show.

    num_states of the pool were seen; where they are more than the frames, one frame was kept for
    each point of an even grid over time. A block is block_size slots and stores tokens_per_block
    tokens. parts: the KV group and the slots for each token of every part of a sequence's table.
    tiers: their slots, by name.
    """

    num_slots: int
    block_size: int
    start_ps: int
    tokens_per_block: int
    parts: tuple[tuple[str, int], ...] = (("", 1),)
    tiers: dict[str, int] = field(default_factory=dict)
    end_ps: int = 0
    num_states: int = 0
    frames: list[Frame] = field(default_factory=list)
    requests: dict[int, Request] = field(default_factory=dict)


class Tracer:
    """Takes a frame whenever the clock moves on after the policy may have changed.

    `gap_ps` is the grid of which every kept frame covers a point; it doubles whenever there are too
    many frames, so the end of the run need not be known.
    """

    def __init__(
        self,
        env: simpy.Environment,
        policy: MemoryPolicy,
        trace: MemoryTrace,
        stop_ps: int,
        max_frames: int,
    ) -> None:
        self.env = env
        self.trace = trace
        self.policy = Traced(policy, self.before_change)
        self.max_frames = max_frames
        self.gap_ps = 1
        self._stop_ps = stop_ps
        self._since_ps = 0

    def before_change(self) -> None:
        """Before a change: record the present state with its duration."""
        now = int(self.env.now)
        if now > self._since_ps:
            self._take(self._since_ps, now)
            self._since_ps = now
        self.policy.stepwise = now >= self.trace.start_ps

    def finish(self, end_ps: int) -> None:
        end = min(end_ps, self._stop_ps)
        self._take(self._since_ps, end)
        self.trace.end_ps = max(end, self.trace.start_ps) if self.trace.frames else end

    def _take(self, since_ps: int, until_ps: int) -> None:
        start, end = max(since_ps, self.trace.start_ps), min(until_ps, self._stop_ps)
        if start >= end:
            return
        self.trace.num_states += 1
        if covers_grid_point(self.trace, self.gap_ps, start, end):
            others = (self.policy.non_sequence_slots(), *self.policy.tier_slots().values())
            self.trace.frames.append(
                Frame(start, end, self.policy.held(), tuple(map(joined, others)))
            )
        while len(self.trace.frames) > self.max_frames:
            self.gap_ps *= 2
            self.trace.frames = thinned(self.trace, self.gap_ps)


def thinned(trace: MemoryTrace, gap_ps: int) -> list[Frame]:
    """The frames that an even grid over time meets; one that lasts is among them."""
    return [
        frame
        for frame in trace.frames
        if covers_grid_point(trace, gap_ps, frame.start_ps, frame.end_ps)
    ]


def covers_grid_point(trace: MemoryTrace, gap_ps: int, start_ps: int, end_ps: int) -> bool:
    """Whether a point of the grid, which begins with the trace, lies in [start_ps, end_ps)."""
    origin = trace.start_ps
    return origin - (origin - start_ps) // gap_ps * gap_ps < end_ps


def joined(slots: NonSequenceSlots) -> NonSequenceSlots:
    """The same slots in order of address, adjacent extents as one."""
    return NonSequenceSlots(*map(_runs, slots))


def _runs(extents: Iterable[Extent]) -> tuple[Extent, ...]:
    runs = list[list[int]]()
    for start, length in sorted(extents):
        if length and runs and start <= runs[-1][1]:
            runs[-1][1] = start + length
        elif length:
            runs.append([start, start + length])
    return tuple(Extent(start, end - start) for start, end in runs)


def trace_memory(
    requests: Workload | Sequence[Request],
    scheduler: Scheduler,
    cost: CostModel,
    max_len: int,
    *,
    start_ps: int = 0,
    stop_ps: int = UNBOUNDED,
    fast_forward: bool = True,
    beams: BeamModel | None = None,
    max_frames: int = MAX_FRAMES,
    pool: PoolSpec | None = None,
) -> MemoryTrace:
    """Simulate, step by step from start_ps to stop_ps, and keep the pool. `pool`: for several KV
    groups, or tiers.
    """
    env, policy = simpy.Environment(), scheduler.policy
    block_size = int(getattr(policy, "block_size", getattr(policy, "page_units", BLOCK_SIZE)))
    tokens_per_block = int(getattr(policy, "tokens_per_page", block_size))
    trace = MemoryTrace(policy.usage().total, block_size, start_ps, tokens_per_block)
    tracer = Tracer(env, policy, trace, stop_ps, max_frames)
    fast_forward = fast_forward and is_measured_in_spans(policy)
    scheduler.state.policy = tracer.policy
    recorder = simulate(
        requests,
        scheduler,
        cost,
        max_len,
        snapshots_ps=[start_ps],
        stop_ps=stop_ps,
        fast_forward=fast_forward,
        beams=beams,
        recorder=Recorder(),
        env=env,
    )
    tracer.finish(recorder.end_ps)
    shown = {held.request_id for frame in trace.frames for held in frame.held.values()}
    trace.requests = {one.request_id: one for one in requests if one.request_id in shown}
    if pool is not None:
        trace.tiers = {name: pool.slots_of(name) for name in policy.tier_slots()}
        trace.parts = named_parts(tracer.policy.parts, pool)
    return trace


def named_parts(parts: Sequence[tuple[int, int]], pool: PoolSpec) -> tuple[tuple[str, int], ...]:
    """The parts of a table with the names of their KV groups; those of one group are numbered."""
    names = [pool.groups[group].name for group, _ in parts] if len(parts) > 1 else [""]
    numbers = [
        f" {names[: i + 1].count(name)}" * (names.count(name) > 1) for i, name in enumerate(names)
    ]
    return tuple(
        (name + number, each) for name, number, (_, each) in zip(names, numbers, parts, strict=True)
    )
