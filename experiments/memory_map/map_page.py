"""The page of `testbed show memory`: a run simulated again with a traced pool, and its trace as
the page's JSON.

Each frame contains the changes since the previous one: {t, step, seqs, pinned, cached, rounding,
in_transit}. A sequence that is not in `seqs` has `step` more tokens and the same table. An entry of
`seqs` is [id] where the sequence has left, else [id, tokens, kept, device, host, first]: the first
`kept` extents of its device table stay, those of `device` follow; `host` is its part on the host,
and `first` the token at which the table begins. With several KV groups, the id is the sequence's
times the number of parts, plus the part. pinned, cached, rounding and in_transit are {add: extents,
drop: extents}; those of tier n below the device have n behind the name. Extents are [start, length,
...] in slots.
"""

import json
from collections import Counter
from collections.abc import Iterable
from itertools import product
from math import gcd
from typing import Any

from testbed.build import build
from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.core.slots import Extent, NonSequenceSlots, ceil_div
from testbed.engine.memory_trace import Frame, MemoryTrace, thinned, trace_memory
from testbed.experiments.pages.page import json_for_script, whole_page

MAX_CHARACTERS = 3_000_000
KINDS = NonSequenceSlots._fields


def encode(trace: MemoryTrace) -> str:
    """The JSON, with as many frames as fit MAX_CHARACTERS."""
    frames = trace.frames
    gap_ps = ceil_div(trace.end_ps - trace.start_ps, len(frames))
    while True:
        text = json.dumps(document(trace, frames), separators=(",", ":"))
        if len(text) <= MAX_CHARACTERS or len(frames) == 1:
            return text
        gap_ps *= 2
        frames = thinned(trace, gap_ps)


def document(trace: MemoryTrace, frames: list[Frame]) -> dict[str, Any]:
    """The trace with these frames as plain values."""
    unit = unit_of(trace)
    extents = [
        {extent for held in frame.held.values() for extent in held.device} for frame in frames
    ]
    allocated = [
        sum(length for _, length in found) for found in extents
    ]  # a shared extent counts once
    empty = Frame(0, 0, {}, (NonSequenceSlots(),) * len(frames[0].pools))
    return {
        "pools": [["device", trace.num_slots // unit], *trace.tiers.items()],
        "parts": [(name, each // unit) for name, each in trace.parts],
        "block_size": trace.block_size // unit,
        "tokens_per_block": trace.tokens_per_block,
        "start": trace.start_ps / PS,
        "end": trace.end_ps / PS,
        "num_states": trace.num_states,
        "fullest": frames[allocated.index(max(allocated))].start_ps / PS,
        "requests": {
            key: [r.prompt_len, r.output_len, r.num_seqs] for key, r in trace.requests.items()
        },
        "owners": {
            seq_id: held.request_id for frame in frames for seq_id, held in frame.held.items()
        },
        "frames": [
            changes(old, new, unit) for old, new in zip([empty, *frames], frames, strict=False)
        ],
    }


def unit_of(trace: MemoryTrace) -> int:
    """The slots of one layer that are drawn as one: what every token, state and page is a multiple
    of.
    """
    if len(trace.parts) == 1:
        return 1
    states = {part for part, (_, each) in enumerate(trace.parts) if not each}
    held = (
        held
        for frame in trace.frames
        for key, held in frame.held.items()
        if key % len(trace.parts) in states
    )
    return gcd(
        trace.block_size,
        *(each for _, each in trace.parts),
        *{e.length for one in held for e in one.device},
    )


def changes(old: Frame, new: Frame, unit: int = 1) -> dict[str, Any]:
    """A frame's changes."""
    both = old.held.keys() & new.held.keys()
    steps = Counter(new.held[key].num_tokens - old.held[key].num_tokens for key in sorted(both))
    step = steps.most_common(1)[0][0] if steps else 0
    frame: dict[str, Any] = {"t": new.start_ps / PS, "step": step}
    frame["seqs"] = [[key] for key in old.held if key not in both] + [
        entry for key in new.held if (entry := entry_of(old, new, key, step, unit))
    ]
    for (pool, (before, after)), kind in product(
        enumerate(zip(old.pools, new.pools, strict=True)), KINDS
    ):
        was, now = (dict.fromkeys(getattr(slots, kind)) for slots in (before, after))
        if was.keys() != now.keys():
            add, drop = (e for e in now if e not in was), (e for e in was if e not in now)
            frame[kind + str(pool or "")] = {"add": flat(add, unit), "drop": flat(drop, unit)}
    return frame


def entry_of(old: Frame, new: Frame, seq_id: int, step: int, unit: int) -> list[Any] | None:
    """A frame's entry for a sequence; None where the sequence has `step` more tokens and the same
    table.
    """
    held, before = new.held[seq_id], old.held.get(seq_id)
    if before is not None and held == before._replace(num_tokens=before.num_tokens + step):
        return None
    old_table = () if before is None else before.device
    different = (
        count for count, (a, b) in enumerate(zip(old_table, held.device, strict=False)) if a != b
    )
    kept = next(
        different, min(len(old_table), len(held.device))
    )  # leading extents that both tables have
    return [
        seq_id,
        held.num_tokens,
        kept,
        flat(held.device[kept:], unit),
        flat(held.host, unit),
        held.first,
    ]


def flat(extents: Iterable[Extent], unit: int) -> list[int]:
    """Extents as one list of numbers, in so many slots."""
    return [number // unit for extent in extents for number in extent]


def retrace(config: RunConfig, start_s: float, stop_s: float | None) -> MemoryTrace:
    """The memory trace of a config's run from start_s to stop_s, or to the run's end."""
    setup = build(config)
    setup.check_alone("the memory map")
    start_ps, _, end_ps = setup.part_ps(start_s, stop_s)
    trace = trace_memory(
        setup.workload,
        setup.scheduler,
        setup.cost,
        setup.model.max_len,
        start_ps=start_ps,
        stop_ps=end_ps,
        fast_forward=setup.config.fast_forward,
        beams=setup.beams,
        pool=setup.pool,
        lengths=setup.lengths,
    )
    if not trace.frames:
        raise InputError(
            f"--from {start_s:g}: the run ends at {trace.end_ps / PS:g} s, there is nothing to draw"
        )
    return trace


def title_of(trace: MemoryTrace, config: RunConfig) -> str:
    """The policy, the model and the size of the pool."""
    policy, blocks = config.policy.name.rpartition(".")[2], trace.num_slots // trace.block_size
    of = " of one layer" if len(trace.parts) > 1 else ""
    return f"{policy}, {config.model.name}: {blocks:,} blocks of {trace.block_size} slots{of}"


def page(trace: MemoryTrace, title: str) -> str:
    """memory_map.html: one file with its data, style and script, which needs no network."""
    data = json_for_script(encode(trace))
    return whole_page("memory_map/page/page.html", title=title, data=data)
