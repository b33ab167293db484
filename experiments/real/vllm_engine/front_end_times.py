"""The time that a vLLM's front end adds to the engine's TTFT, of a calibration's own requests.

`queued_ts` is when the engine's core takes a request from its inbox, which it does between two
iterations: the scheduler has it a hundredth of a millisecond later. Until then the request waits
for the plan, as a simulated one waits for its engine, and that is no time of the front end. So the
way to the core is that of the requests that hardly waited; the way back is from the core's first
token to the client's hands. The front end hands out the tokens of an iteration one after the other,
so the way back is longer the more requests decode beside. Token ids are asked for in the front
end's own process, so tokenisation of a text, HTTP and a network come on top.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from testbed.core.errors import InputError
from testbed.traces.files import plain_or_packed

REQUESTS = "requests.jsonl"
PART = "before_first_token"
CLIENTS = ("asked_s", "first_s", "last_s")
ALONE = ("prompts", "first decodes")  # waves
US = 1e6
UNWAITED = 0.05  # quantile of the times to the core at which a request came just before a plan


def front_end_section(folder: Path) -> dict[str, Any] | None:
    """The section front_end of a profile; None of sweeps without the client's times."""
    path = plain_or_packed(folder / REQUESTS)
    if path is None:
        return None
    rows = pd.read_json(path, lines=True)
    if not set(CLIENTS) <= set(rows):
        return None
    points = [[PART, number, _before_us(own)] for number, own in _by_decodes(rows)]
    if not points:
        raise InputError(
            key=path,
            problem="has no prompts of the sweeps",
            remedy="give a folder of gpu calibrate --keep",
        )
    note = "to the core without the wait for a plan, and back; load: decodes beside"
    axes = ["part", "load"]
    return {"axes": axes, "columns": ["us"], "note": note, "points": points}


def _by_decodes(rows: pd.DataFrame) -> Iterator[tuple[int, pd.DataFrame]]:
    """The prompts of the sweeps, by the number of decodes beside them."""
    prompts = rows[rows.output_toks < 8]
    beside = prompts.wave.str.extract(r"among (\d+) decodes")[0].astype(float)
    beside[prompts.wave.isin(ALONE)] = 0
    for number, own in prompts.groupby(beside):
        yield int(number), own


def _before_us(prompts: pd.DataFrame) -> float:
    back = prompts.first_s - prompts.first_token_ts
    before = (prompts.queued_ts - prompts.asked_s).quantile(UNWAITED) + back.median()
    return round(max(0.0, US * float(before)), 3)
