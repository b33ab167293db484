"""A memory trace as the small JSON that the page replays: each frame says what has changed since the one before.

A frame is {t, step, seqs, pinned, cached, rounding}. A sequence of which a frame says nothing has `step` more tokens
and the same table. One that it names is [id] where it has gone, else [id, tokens, kept, device, host]: the first `kept`
extents of its device table stay, those of `device` follow; `host` is its part on the host. The others are
{add: extents, drop: extents}. Extents are [start, length, ...] in slots.
"""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from experiments.memory_map import colors
from testbed.core.request import PS
from testbed.core.slots import Extent, ceil_div
from testbed.sim.memory_trace import Frame, MemoryTrace, thinned

MAX_CHARACTERS = 3_000_000
KINDS = ("pinned", "cached", "rounding")


def encode(trace: MemoryTrace) -> str:
    """The JSON; frames are thinned until it is no longer than MAX_CHARACTERS."""
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
    empty = Frame(0, 0, {}, type(frames[0].unowned)())
    return {
        "block_size": trace.block_size,
        "num_slots": trace.num_slots,
        "start": trace.start_ps / PS,
        "end": trace.end_ps / PS,
        "num_states": trace.num_states,
        "requests": {key: [r.prompt_len, r.output_len, r.num_seqs] for key, r in trace.requests.items()},
        "owners": {seq_id: held.request_id for frame in frames for seq_id, held in frame.held.items()},
        "frames": [changes(old, new) for old, new in zip([empty, *frames], frames, strict=False)],
        **look(),
    }


def look() -> dict[str, Any]:
    """Names and colours, so that picture and page cannot differ; lists are by kind of slot."""
    kinds = sorted(colors.NAMES)
    return {
        "palette": colors.PALETTE,
        "several": colors.SEVERAL_COLOR,
        "shared_name": colors.SHARED_NAME,
        "names": [colors.NAMES[kind] for kind in kinds],
        "plain": [colors.PLAIN.get(kind) for kind in kinds],
        "tints": [colors.TINTS.get(kind, 0) for kind in kinds],
        "lines": [colors.LINES.get(kind) for kind in kinds],
    }


def changes(old: Frame, new: Frame) -> dict[str, Any]:
    """What a frame says."""
    both = old.held.keys() & new.held.keys()
    steps = Counter(new.held[key].num_tokens - old.held[key].num_tokens for key in sorted(both))
    step = steps.most_common(1)[0][0] if steps else 0
    frame: dict[str, Any] = {"t": new.start_ps / PS, "step": step}
    frame["seqs"] = [[key] for key in old.held if key not in both] + [
        entry for key in new.held if (entry := entry_of(old, new, key, step))
    ]
    for kind in KINDS:
        was, now = (dict.fromkeys(getattr(frame.unowned, kind)) for frame in (old, new))
        if was.keys() != now.keys():
            add, drop = (e for e in now if e not in was), (e for e in was if e not in now)
            frame[kind] = {"add": flat(add), "drop": flat(drop)}
    return frame


def entry_of(old: Frame, new: Frame, seq_id: int, step: int) -> list[Any] | None:
    """What a frame says of a sequence that it shows; None where that is as expected."""
    held, before = new.held[seq_id], old.held.get(seq_id)
    if before is None:
        return [seq_id, held.num_tokens, 0, flat(held.device), flat(held.host)]
    if held == before._replace(num_tokens=before.num_tokens + step):
        return None
    kept = common(before.device, held.device)
    return [seq_id, held.num_tokens, kept, flat(held.device[kept:]), flat(held.host)]


def common(old: tuple[Extent, ...], new: tuple[Extent, ...]) -> int:
    """How many leading extents two tables have in common."""
    for count, (a, b) in enumerate(zip(old, new, strict=False)):
        if a != b:
            return count
    return min(len(old), len(new))


def flat(extents: Iterable[Extent]) -> list[int]:
    """Extents as one list of numbers."""
    return [number for extent in extents for number in extent]
