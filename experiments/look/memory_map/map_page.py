"""The page of `testbed show memory`.

The run is simulated again with a traced pool, and the trace becomes the page's JSON. A frame has
the changes since the previous frame:

- t: the time (s); step: the tokens that every sequence gained, unless `seqs` lists it
- seqs: [id] of a sequence that left, else [id, tokens, kept, device, host, first]. The first `kept`
  extents of its device table stay, and those of `device` follow them; host: its extents on the
  host; first: the token at which its table begins. With several KV groups, the id is the
  sequence's times the number of parts, plus the part.
- pinned, cached, rounding, in_transit: {add: extents, drop: extents}; a number n after the name
  means tier n below the device

Extents are [start, length, start, length, ...] in slots.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import gcd
from typing import Any

from testbed.core.errors import InputError
from testbed.core.garbage import rare_collections
from testbed.core.request import PS
from testbed.core.slots import Extent, NonSequenceSlots, ceil_div
from testbed.engine.memory_trace import (
    MAX_FRAMES,
    Frame,
    MemoryTrace,
    TracedPart,
    thinned,
    trace_run,
)
from testbed.engine.recorder import Recorder
from testbed.engine.simulation import Environment
from testbed.experiments.look.memory_map.request_colors import request_colors
from testbed.experiments.look.pages.page import json_for_script, whole_page
from testbed.experiments.runs.part_words import name_words
from testbed.experiments.runs.progress import left, status_line
from testbed.run.build import Setup, build
from testbed.run.config import RunConfig
from testbed.run.oracles import future_read
from testbed.run.simulate import recorded

MAX_CHARACTERS = 3_000_000
KINDS = NonSequenceSlots._fields


@rare_collections()
def encode(trace: MemoryTrace) -> str:
    """The trace as JSON; it keeps as many frames as fit MAX_CHARACTERS."""
    gap_ps = ceil_div(trace.end_ps - trace.start_ps, len(trace.frames))
    while True:
        frames = all_changes(trace)
        if len(trace.frames) == 1 or len(compact(frames)) <= MAX_CHARACTERS:
            text = compact({**document(trace), "frames": frames})
            if len(trace.frames) == 1 or len(text) <= MAX_CHARACTERS:
                return text
        gap_ps *= 2
        trace.frames = thinned(trace, gap_ps)


def compact(value: object) -> str:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def all_changes(trace: MemoryTrace) -> list[dict[str, Any]]:
    """The entries of the page's frames."""
    empty = Frame(0, 0, {}, (NonSequenceSlots(),) * len(trace.frames[0].pools))
    previous, unit = [empty, *trace.frames[:-1]], unit_of(trace)
    return [changes(old, new, unit) for old, new in zip(previous, trace.frames, strict=True)]


def document(trace: MemoryTrace) -> dict[str, Any]:
    """The trace as plain values, without its frames."""
    frames, unit = trace.frames, unit_of(trace)
    return {
        "pools": [["device", trace.num_slots // unit], *trace.tiers.items()],
        "parts": [(name, each // unit) for name, each in trace.parts],
        "block_size": trace.block_size // unit,
        "tokens_per_block": trace.tokens_per_block,
        "start": trace.start_ps / PS,
        "end": trace.end_ps / PS,
        "num_states": trace.num_states,
        "fullest": max(frames, key=num_held_slots).start_ps / PS,
        "requests": {
            key: [r.prompt_len, r.output_len, r.num_seqs] for key, r in trace.requests.items()
        },
        "owners": {
            seq_id: held.request_id for frame in frames for seq_id, held in frame.held.items()
        },
        "colors": request_colors(frames),
    }


def num_held_slots(frame: Frame) -> int:
    """The slots on the device that sequences hold; a shared extent counts once."""
    extents = set[Extent]().union(*(held.device for held in frame.held.values()))
    return sum([length for _, length in extents])


def unit_of(trace: MemoryTrace) -> int:
    """The number of slots of one layer that the page draws as one.

    It divides the size of every token, state and page.
    """
    if len(trace.parts) == 1:
        return 1
    sizes = {trace.block_size, *(each for _, each in trace.parts)}
    states = {part for part, (_, each) in enumerate(trace.parts) if not each}
    for frame in trace.frames:
        for key, held in frame.held.items():
            if key % len(trace.parts) in states:
                sizes |= {extent.length for extent in held.device}
    return gcd(*sizes)


def changes(old: Frame, new: Frame, unit: int = 1) -> dict[str, Any]:
    """The entry of `new` in the page's frames; unit: the slots that are drawn as one."""
    stayed = old.held.keys() & new.held.keys()
    gained = [new.held[key].num_tokens - old.held[key].num_tokens for key in sorted(stayed)]
    step = Counter(gained).most_common(1)[0][0] if gained else 0
    left = [[key] for key in old.held if key not in stayed]
    entries = [entry_of(old, new, key, step, unit) for key in new.held]
    frame: dict[str, Any] = {"t": new.start_ps / PS, "step": step}
    frame["seqs"] = [*left, *filter(None, entries)]
    for tier, (before, after) in enumerate(zip(old.pools, new.pools, strict=True)):
        for kind in KINDS:
            change = _difference(getattr(before, kind), getattr(after, kind), unit)
            if change:
                frame[f"{kind}{tier or ''}"] = change
    return frame


def _difference(
    before: Sequence[Extent], after: Sequence[Extent], unit: int
) -> dict[str, list[int]] | None:
    """The extents that were added and dropped, by address; None if there are none."""
    old, new = set(before), set(after)
    added, dropped = sorted(new - old), sorted(old - new)
    if not added and not dropped:
        return None
    return {"add": flat(added, unit), "drop": flat(dropped, unit)}


def entry_of(old: Frame, new: Frame, seq_id: int, step: int, unit: int) -> list[Any] | None:
    """A frame's entry for a sequence; None if it only gained `step` tokens."""
    held, before = new.held[seq_id], old.held.get(seq_id)
    if before is not None and held == before._replace(num_tokens=before.num_tokens + step):
        return None
    kept = num_common(() if before is None else before.device, held.device)
    return [
        seq_id,
        held.num_tokens,
        kept,
        flat(held.device[kept:], unit),
        flat(held.host, unit),
        held.first,
    ]


def num_common(old_table: Sequence[Extent], new_table: Sequence[Extent]) -> int:
    """The number of leading extents that both tables have."""
    shorter = min(len(old_table), len(new_table))
    if old_table[:shorter] == new_table[:shorter]:  # most tables only grow
        return shorter
    pairs = zip(old_table, new_table, strict=False)
    return next(number for number, (old, new) in enumerate(pairs) if old != new)


def flat(extents: Iterable[Extent], unit: int) -> list[int]:
    """Extents as one list of starts and lengths, in units of `unit` slots."""
    return [number // unit for extent in extents for number in extent]


@rare_collections()
def retrace(
    config: RunConfig,
    start_s: float,
    stop_s: float | None,
    engine: int | None = None,
    summary: Mapping[str, Any] | None = None,
) -> MemoryTrace:
    """The memory trace of a config's run from start_s to stop_s (s), or to the run's end. engine:
    whose memory, if there are several. summary: that of the run, which says how dense its frames
    can be.
    """
    setup = build(config)
    number = _number_of(setup, engine)
    start_ps, _, end_ps = setup.part_ps(start_s, stop_s)
    mode = setup.mode._replace(snapshots_ps=(start_ps,), stop_ps=end_ps)
    gap_ps = 1 if stop_s is not None or start_s else gap_of(summary)

    def run(env: Environment) -> int:
        with status_line(_progress(env, stop_s, summary)):
            recorders = recorded(setup, Recorder, mode, env)
        return recorders[number].end_ps

    scheduler = setup.scheduler if setup.fleet is None else setup.fleet.parts[number].scheduler
    part = TracedPart(start_ps, end_ps, gap_ps)
    trace = trace_run(run, setup.workload, scheduler, part, setup.pool_of(number))
    if not trace.frames:
        raise InputError(
            key="--from",
            value=f"{start_s:g}",
            problem=f"the run ends at {trace.end_ps / PS:g} s, there is nothing to draw",
        )
    return trace


def _progress(
    env: Environment, stop_s: float | None, summary: Mapping[str, Any] | None
) -> Callable[[], str]:
    """The progress of a simulation, in words, and its end if stop_s or a summary has it."""
    began = time.monotonic()
    ends_s = [stop_s, None if summary is None else summary["simulated_s"]]
    end_s = min((end for end in ends_s if end is not None), default=None)

    def text() -> str:
        now_s = env.now / PS
        if end_s is None:
            return f"simulating again: {now_s:,.0f} s"
        rest = left(now_s, end_s, time.monotonic() - began)
        return f"simulating again: {now_s:,.0f} of {end_s:,.0f} s{rest}"

    return text


def gap_of(summary: Mapping[str, Any] | None) -> int:
    """The picoseconds between frames of a whole run of more iterations than frames; else 1."""
    if summary is None or summary["iterations"] <= MAX_FRAMES:
        return 1
    return max(ceil_div(round(summary["simulated_s"] * PS), MAX_FRAMES), 1)


def _number_of(setup: Setup, engine: int | None) -> int:
    """The engine to draw, 0 if there is one. Raises InputError for one that is not there, and
    for one that fails.
    """
    if setup.is_alone:
        if engine:
            raise InputError(
                key="--engine",
                value=engine,
                problem="there is one engine",
                remedy="leave the option out",
            )
        return 0
    assert setup.fleet is not None, "several engines are a fleet"
    num_engines = len(setup.fleet.parts)
    if engine is None or not 0 <= engine < num_engines:
        raise InputError(
            key="--engine",
            problem=f"the memory map shows one of {num_engines} engines",
            remedy=f"give its number, from 0 to {num_engines - 1}",
        )
    if engine in [fault.engine for fault in setup.fleet.rules.faults]:
        raise InputError(
            key="--engine",
            value=engine,
            problem="it fails in this run, and its memory with it",
            remedy="give another engine",
        )
    return engine


def title_of(trace: MemoryTrace, config: RunConfig, engine: int | None = None) -> str:
    """The policy, what it reads of the future, the model and the size of the pool; of which engine,
    if there are several.
    """
    of_engine = "" if engine is None else f"Engine {engine} of {config.replicas}, "
    policy = name_words(config.policy.name.rpartition(".")[2]).capitalize()
    num_blocks = trace.num_slots // trace.block_size
    slots = "slots of one layer" if len(trace.parts) > 1 else "tokens"
    blocks = f"{num_blocks:,} blocks of {trace.block_size} {slots}"
    future = future_read(policy=config.policy, scheduler=config.scheduler)
    oracle = f" (reads the future: {future})" if future else ""
    return f"{of_engine}{policy}{oracle}, {config.model.name}: {blocks}"


def page(trace: MemoryTrace, title: str) -> str:
    """The page as one file with its data, style and script; it needs no network."""
    data = json_for_script(encode(trace))
    return whole_page("look/memory_map/page/page.html", title=title, data=data)
