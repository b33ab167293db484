"""States of the pool over time: a run whose policy is looked at whenever its clock moves on, as
frames to draw.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Row
from dataclasses import dataclass, field
from typing import NamedTuple

import simpy

from testbed.core.request import Request, Workload
from testbed.core.sequence import Sequence
from testbed.core.slots import DEVICE, HOST, Extent, NonSequenceSlots
from testbed.cost.model import UNBOUNDED
from testbed.memory.layouts import Layout, PageLayout
from testbed.memory.pools import PoolSpec
from testbed.sched.scheduler import Scheduler

MAX_FRAMES = 1500
BLOCK_SIZE = 16  # in which a pool is shown whose policy knows no blocks


class Held(NamedTuple):
    """The slots of a sequence's tokens from `first` on: on the device, then on the host while it is
    swapped out.
    """

    request_id: int
    num_tokens: int
    device: tuple[Extent, ...]
    host: tuple[Extent, ...] = ()
    first: int = 0


class PoolState(NamedTuple):
    """Slots that the sequences hold, and those of no table: on the device, then in each tier that
    stores prefixes.
    """

    held: dict[int, Held]
    pools: tuple[NonSequenceSlots, ...]


UNSEEN = PoolState({}, ())


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

    num_states: of the pool; if they are more than the frames, one frame was kept for each point
    of an even grid over time, and each time between two events that was passed by is counted. A
    block is block_size slots and stores tokens_per_block tokens. parts: the KV group and the slots
    for each token of every part of a sequence's table. tiers: their slots, by name.
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


@dataclass(frozen=True)
class TracedPart:
    """The part of a run that is traced, and how densely.

    gap_ps: of the grid over time of which each kept frame covers a point, to begin with; 1 to keep
    every state while they are few. It doubles whenever there are more than max_frames, so the end
    of the run need not be known.
    """

    start_ps: int = 0
    stop_ps: int = UNBOUNDED
    gap_ps: int = 1
    max_frames: int = MAX_FRAMES


class Tracer(simpy.Environment):
    """A clock that takes a frame whenever it moves on: nothing changes the policy meanwhile.

    Reads only a policy's public methods, so it works for every policy. From the trace's start on no
    plan is repeated, so that every block is seen to be taken in its own iteration. The pool is not
    looked at if no frame would be kept.
    """

    def __init__(self, scheduler: Scheduler, trace: MemoryTrace, part: TracedPart) -> None:
        super().__init__(0)
        self.trace = trace
        self.max_frames = part.max_frames
        self.gap_ps = part.gap_ps
        self.parts: list[tuple[int, int]] = [(0, 1)]
        self._state = scheduler.state
        self._stop_ps = part.stop_ps
        self._pool = UNSEEN
        self._since_ps = 0
        self._extents: dict[Extent, Extent] = {}
        self._last_held: dict[int, Held] = {}

    def step(self) -> None:
        """Process the next event; the pool is looked at before the clock moves on to it."""
        next_ps = self.peek()
        if next_ps > self.now:
            self._look(int(next_ps))
        super().step()

    def finish(self, end_ps: int) -> None:
        """The run is over."""
        end = min(end_ps, self._stop_ps)
        self._take(end)
        self.trace.end_ps = max(end, self.trace.start_ps) if self.trace.frames else end

    def _look(self, next_ps: int) -> None:
        """The pool as it is from now until next_ps; one that has not changed goes on."""
        now = int(self.now)
        self._state.stepwise = next_ps >= self.trace.start_ps
        if next_ps <= self.trace.start_ps:
            self._since_ps = now
        if next_ps <= self.trace.start_ps or now >= self._stop_ps:
            return
        if not covers_grid_point(self.trace, self.gap_ps, now, next_ps):
            self._pass_by(now, next_ps)
            return
        pool = self._pool_now()
        if pool != self._pool:
            self._take(now)
            self._pool, self._since_ps = pool, now

    def _pass_by(self, now_ps: int, next_ps: int) -> None:
        """No frame will be kept of the pool as it is until next_ps: it is not looked at."""
        self._take(now_ps)
        self.trace.num_states += 1
        self._pool, self._since_ps = UNSEEN, next_ps

    def _take(self, until_ps: int) -> None:
        """A frame of the pool as it was until until_ps."""
        start, end = max(self._since_ps, self.trace.start_ps), min(until_ps, self._stop_ps)
        if start >= end or self._pool is UNSEEN:
            return
        self.trace.num_states += 1
        if covers_grid_point(self.trace, self.gap_ps, start, end):
            self.trace.frames.append(Frame(start, end, *self._pool))
        while len(self.trace.frames) > self.max_frames:
            self.gap_ps *= 2
            self.trace.frames = thinned(self.trace, self.gap_ps)

    def _pool_now(self) -> PoolState:
        memory = self._state.memory
        others = (memory.non_sequence_slots(), *memory.tier_slots().values())
        return PoolState(self._held(), tuple(map(joined, others)))

    def _held(self) -> dict[int, Held]:
        """Slots of every sequence, by sequence id * number of parts + part."""
        memory, held, last = self._state.memory, dict[int, Held](), self._last_held
        for seq in [seq for group in self._state.with_slots() for seq in group.resident]:
            tables = memory.group_tables(seq)
            self.parts = [(table.group, table.slots_per_token) for table in tables]
            for part, table in enumerate(tables):
                key = seq.seq_id * len(tables) + part
                before = last[key].device if key in last else ()
                extents = self._grown(before, table.extents)
                held[key] = Held(seq.request_id, seq.num_slots, extents, first=table.first)
        for group in self._state.swapped:
            for seq in group.sequences:
                held[seq.seq_id * len(self.parts)] = self._swapped(seq)
        self._last_held = held
        return held

    def _swapped(self, seq: Sequence) -> Held:
        swaps = self._state.memory.swaps
        assert swaps is not None, "the policy has moved the sequence to the host"
        tables = swaps.swapped_table(seq)
        device, host = (self._known(tables.get(tier, ())) for tier in (DEVICE, HOST))
        return Held(seq.request_id, seq.num_slots, device, host)

    def _grown(self, before: tuple[Extent, ...], extents: list[Extent]) -> tuple[Extent, ...]:
        """As `_known`; most tables are those of the frame before, or begin with them."""
        listed = tuple(extents)
        if listed == before:
            return before
        if listed[: len(before)] != before:
            return self._known(listed)
        return before + self._known(listed[len(before) :])

    def _known(self, extents: Iterable[Extent]) -> tuple[Extent, ...]:
        """These extents; equal ones are one object, because thousands of frames repeat them."""
        return tuple([self._extents.setdefault(extent, extent) for extent in extents])


def thinned(trace: MemoryTrace, gap_ps: int) -> list[Frame]:
    """The frames that stand for a point of an even grid over time; one that lasts is among them."""
    ends_ps = [*(frame.start_ps for frame in trace.frames[1:]), trace.frames[-1].end_ps]
    return [
        frame
        for frame, end_ps in zip(trace.frames, ends_ps, strict=True)
        if covers_grid_point(trace, gap_ps, frame.start_ps, end_ps)
    ]


def covers_grid_point(trace: MemoryTrace, gap_ps: int, start_ps: int, end_ps: int) -> bool:
    """True if a point of the grid, which begins with the trace, lies in [start_ps, end_ps)."""
    origin = trace.start_ps
    return origin - (origin - start_ps) // gap_ps * gap_ps < end_ps


def joined(slots: NonSequenceSlots) -> NonSequenceSlots:
    """The same slots in order of address, adjacent extents as one."""
    return NonSequenceSlots(*map(_runs, slots))


def _runs(extents: Iterable[Extent]) -> tuple[Extent, ...]:
    runs, end = list[Extent](), -1
    for extent in sorted(extents):
        start, length = extent
        if not length:
            continue
        if start > end:
            runs.append(extent)
        else:
            first = runs[-1].start
            runs[-1] = Extent(first, start + length - first)
        end = start + length
    return tuple(runs)


def trace_run(
    run: Callable[[simpy.Environment], int],
    requests: Workload | Row[Request],
    scheduler: Scheduler,
    part: TracedPart,
    pool: PoolSpec | None = None,
) -> MemoryTrace:
    """The trace of a part of a run.

    run: simulates on the clock that it gets until part.stop_ps, with a snapshot at part.start_ps,
    and returns the end of the run (ps). requests: those that it serves. The pool is that of this
    scheduler, which may be one of several. pool: that of the config, for the names of its KV groups
    and the sizes of its tiers.
    """
    memory = scheduler.memory
    block_size, tokens_per_block = sizes_of(memory.layout)
    num_slots = memory.policy.usage().total
    trace = MemoryTrace(num_slots, block_size, part.start_ps, tokens_per_block)
    tracer = Tracer(scheduler, trace, part)
    scheduler.state.stepwise = part.start_ps <= 0
    tracer.finish(run(tracer))
    shown = {held.request_id for frame in trace.frames for held in frame.held.values()}
    trace.requests = {
        request.request_id: request for request in requests if request.request_id in shown
    }
    if pool is not None:
        trace.tiers = {name: pool.slots_of(name) for name in memory.tier_slots()}
        trace.parts = named_parts(tracer.parts, pool)
    return trace


def sizes_of(layout: Layout | None) -> tuple[int, int]:
    """The slots and the tokens of a block; BLOCK_SIZE if the policy's tables have no regular
    form.
    """
    if layout is None:
        return BLOCK_SIZE, BLOCK_SIZE
    if isinstance(layout, PageLayout):
        return layout.page_units, layout.tokens_per_page
    return layout.block_size, layout.block_size


def named_parts(parts: Row[tuple[int, int]], pool: PoolSpec) -> tuple[tuple[str, int], ...]:
    """The parts of a table with the names of their KV groups; those of one group are numbered."""
    names = [pool.groups[group].name for group, _ in parts] if len(parts) > 1 else [""]
    numbers = [
        f" {names[: i + 1].count(name)}" * (names.count(name) > 1) for i, name in enumerate(names)
    ]
    return tuple(
        (name + number, each) for name, number, (_, each) in zip(names, numbers, parts, strict=True)
    )
