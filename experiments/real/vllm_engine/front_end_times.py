"""The time that a vLLM's front end adds to the engine's TTFT, of a calibration's own requests.

`queued_ts` is when the engine's core takes a request from its inbox, which it does between two
iterations: the scheduler has it a hundredth of a millisecond later. Until then the request waits
for the plan, as a simulated one waits for its engine, and that is no time of the front end. So the
way to the core is that of the requests that hardly waited; the way back is from the core's first
token to the client's hands. Token ids are asked for in the front end's own process, so tokenisation
of a text, HTTP and a network come on top.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from testbed.core.errors import InputError
from testbed.traces.files import plain_or_packed

REQUESTS = "requests.jsonl"
CLIENTS = ("asked_s", "first_s", "last_s")
IDLE, LOADED = "idle", "loaded"
US = 1e6
MANY = 64  # decodes beside which the front end is loaded
UNWAITED = 0.05  # quantile of the times to the core at which a request came just before a plan


def front_end_section(folder: Path) -> dict[str, Any] | None:
    """The section front_end of a profile; None of sweeps without the client's times."""
    path = plain_or_packed(folder / REQUESTS)
    if path is None:
        return None
    rows = pd.read_json(path, lines=True)
    if not set(CLIENTS) <= set(rows):
        return None
    prompts = rows[rows.output_toks < 8]
    points = [point for load, own in _by_load(prompts) for point in _points(load, own)]
    if not points:
        raise InputError(
            key=path,
            problem="has no prompts of the sweeps",
            remedy="is it of gpu calibrate --keep?",
        )
    note = "to the core without the wait for a plan, and back; what the last token takes longer"
    axes = ["part", "load"]
    return {"axes": axes, "columns": ["us"], "note": note, "points": points}


def _by_load(prompts: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    beside = prompts.wave.str.extract(r"among (\d+) decodes")[0].astype(float)
    is_alone = prompts.wave.isin(["prompts", "first decodes"])
    for load, chosen in ((IDLE, is_alone), (LOADED, beside >= MANY)):
        if chosen.any():
            yield load, prompts[chosen]


def _points(load: str, rows: pd.DataFrame) -> Iterator[list[Any]]:
    back = rows.first_s - rows.first_token_ts
    before = (rows.queued_ts - rows.asked_s).quantile(UNWAITED) + back.median()
    after = (rows.last_s - rows.last_token_ts - back).median()
    yield ["before_first_token", load, round(max(0.0, US * before), 3)]
    yield ["after_last_token", load, round(max(0.0, US * after), 3)]
