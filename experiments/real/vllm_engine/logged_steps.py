"""The iterations of vLLM's engine as a scheduler class has logged them.

The engine's host plans an iteration, launches it, and reads the results of the one before; with
asynchronous scheduling the one before is computed meanwhile. So a result is read late if the
next launch takes longer than the rest of the computation.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from testbed.core.errors import InputError
from testbed.experiments.real.vllm_engine.host_speed import slowness
from testbed.experiments.real.vllm_engine.in_vllm.sweeps import WARM_UP
from testbed.traces.files import plain_or_packed

COLUMNS = (
    "schedule_start_s",
    "result_s",
    "prompts",
    "prompt_tokens",
    "decodes",
    "decode_context",
    "chunks",
)
FILE = "steps.csv"
WAVES = "waves.csv"
OF_WAVES = ("name", "started_s", "ended_s")
AMONG_WAVES = "prompts among"
MS = 1e3
KIND = ["decodes", "prompts", "prompt_tokens"]  # iterations of the same work


def read_steps(folder: Path) -> pd.DataFrame:
    """The iterations of one log, in order; times in ms.

    planned, result: when it was planned, and when its results were read. ms: from the results
    before, or from its plan if it `is_first`: planned when all results were in. launch: from its
    plan until the next, which is its launch if it is_first; before_ms, late_ms: from its plan until
    the results before, and from the next plan until its own. handed_ms: from the results for which
    the host had waited until its plan; 0 if there were none; handed_behind_ms: that of the next
    one. is_unseen: no iteration before had as many tokens. prefill, prompt_pairs: new and stored
    tokens of each prompt, and the pairs of a query and a key. next_end_ms: from the next plan to
    the next results. slowness: of the host at that time, over its mean; 1 if the file does not show
    it. pass_s: when the sweeps of prompts among decodes that it is of began, each with the same
    numbers of decodes; NaN outside them.
    Raises InputError for a file that lacks a column.
    """
    table = _table(folder)
    planned, result = table.schedule_start_s * MS, table.result_s * MS
    steps = pd.DataFrame(
        {
            "planned": planned,
            "result": result,
            "launch": planned.shift(-1) - planned,
            "ms_from_plan": result - planned,
            "is_first": planned > result.shift(1, fill_value=-np.inf),
            "prompts": table.prompts,
            "prompt_tokens": table.prompt_tokens,
            "prefill": [_prefill(chunks) for chunks in table.chunks],
            "decodes": table.decodes,
            "decode_context": table.decode_context,
            "slowness": slowness(table),
        }
    )
    steps = _with_neighbours(steps)
    waves = _waves(folder)
    steps = steps[~_is_warm_up(waves, steps.planned)].assign(pass_s=_pass_s(waves, steps.planned))
    return steps[steps.num_tokens > 0].reset_index(drop=True)  # others compute nothing


def _table(folder: Path) -> pd.DataFrame:
    """The file's rows."""
    path = plain_or_packed(folder / FILE)
    if path is None:
        raise InputError(key=folder, problem=f"has no {FILE} (or {FILE}.gz) of logged iterations")
    table = pd.read_csv(path, keep_default_na=False, dtype={"chunks": str})
    missing = [name for name in COLUMNS if name not in table]
    if missing:
        raise InputError(key=path, problem=f"has no column {', '.join(missing)}")
    return table


def left_out(folder: Path) -> list[str]:
    """The waves that the time limit has left out, by waves.csv; none if there is no such
    file.
    """
    waves = _waves(folder)
    return [str(name) for name in waves["name"][waves.started_s.isna()]]


def _waves(folder: Path) -> pd.DataFrame:
    """The waves that were asked for; empty if there is no such file."""
    path = folder / WAVES
    return pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=list(OF_WAVES))


def _is_warm_up(waves: pd.DataFrame, planned: pd.Series) -> pd.Series:
    """True for each of these moments (ms) in a wave that only warms the engine up."""
    is_warm_up = pd.Series(False, index=planned.index)
    for wave in waves[waves["name"] == WARM_UP].itertuples():
        is_warm_up |= planned.between(wave.started_s * MS, wave.ended_s * MS)
    return is_warm_up


def _pass_s(waves: pd.DataFrame, planned: pd.Series) -> pd.Series:
    """The begin of the pass that each of these moments (ms) is in."""
    among = waves[waves["name"].str.startswith(AMONG_WAVES)].dropna()
    number = among.groupby("name").cumcount()
    began_s = among.started_s.groupby(number).transform("min")
    found = pd.Series(np.nan, index=planned.index)
    for wave, began in zip(among.itertuples(), began_s, strict=True):
        found[planned.between(wave.started_s * MS, wave.ended_s * MS)] = began
    return found


def _with_neighbours(steps: pd.DataFrame) -> pd.DataFrame:
    """With what was planned before and behind each iteration, and its time."""
    steps["prompt_pairs"] = steps.prefill.map(_num_pairs)
    steps["num_tokens"] = steps.prompt_tokens + steps.decodes
    steps["is_unseen"] = ~steps.num_tokens.duplicated()
    steps["num_seqs"] = steps.prompts + steps.decodes
    steps["before_ms"] = steps.result.shift(1) - steps.planned  # until the results before
    was_first = steps.is_first | steps.is_first.shift(1, fill_value=True)
    handed = (steps.planned - steps.result.shift(2)).clip(lower=0)
    steps["handed_ms"] = np.where(was_first, 0.0, handed)
    steps["handed_behind_ms"] = steps.handed_ms.shift(-1)
    steps["late_ms"] = steps.ms_from_plan - steps.launch  # from the next plan until the results
    steps["next_end_ms"] = steps.result.shift(-1) - steps.planned.shift(-1)
    began = np.where(steps.is_first, steps.planned, steps.result.shift(1))
    steps["ms"] = steps.result - began
    steps["decodes_before"] = np.where(steps.prompts.shift(1) == 0, steps.decodes.shift(1), 0)
    steps["context_before"] = steps.decode_context.shift(1)
    steps["prompts_before"] = steps.prompts.shift(1, fill_value=0)
    steps["tokens_before"] = steps.num_tokens.shift(1)
    steps["pairs_before"] = steps.prompt_pairs.shift(1)
    steps["decodes_behind"] = steps.decodes.shift(-1, fill_value=0)
    steps["prompts_behind"] = steps.prompts.shift(-1, fill_value=0)
    return steps


def _prefill(chunks: str) -> tuple[tuple[int, int], ...]:
    """New tokens, and those stored before, of chunks such as 0+128;512+64."""
    pairs = (chunk.split("+") for chunk in filter(None, chunks.split(";")))
    return tuple((int(new), int(past)) for past, new in pairs)


def _num_pairs(prefill: tuple[tuple[int, int], ...]) -> float:
    """Pairs of a query and a key."""
    return sum(new * past + new * (new + 1) / 2 for new, past in prefill)


def steady_decodes(steps: pd.DataFrame) -> pd.DataFrame:
    """The iterations of decodes alone between two others of as many."""
    alone = (steps.prompts == 0) & (steps.prompts_behind == 0) & ~steps.is_first
    is_between = (steps.decodes_before == steps.decodes) & (steps.decodes_behind == steps.decodes)
    return steps[alone & is_between]


def lone_prompts(steps: pd.DataFrame) -> pd.DataFrame:
    """The iterations of prompts alone, planned when nothing was under way, with nothing behind: the
    host launches no other one before it reads their results.
    """
    is_alone = (steps.prompts > 0) & (steps.decodes == 0)
    is_last = (steps.prompts_behind == 0) & (steps.decodes_behind == 0)
    return steps[steps.is_first & is_alone & is_last]


def prompts_in_a_row(steps: pd.DataFrame) -> pd.DataFrame:
    """The iterations of prompts alone behind another one of prompts alone."""
    is_prompt = (steps.prompts > 0) & (steps.decodes == 0)
    return steps[is_prompt & is_prompt.shift(1, fill_value=False) & ~steps.is_first]


def prompts_among_decodes(steps: pd.DataFrame) -> pd.DataFrame:
    """The iterations with prompts behind one of decodes alone, and before another one."""
    return steps[
        (steps.prompts > 0)
        & (steps.prompts_behind == 0)
        & ~steps.is_first
        & (steps.decodes_before > 0)
    ]


def prompts_behind_prompts(steps: pd.DataFrame) -> pd.DataFrame:
    """The iterations with prompts that were planned while other prompts alone were under way."""
    is_behind = (steps.prompts_before > 0) & (steps.context_before == 0)
    return steps[(steps.prompts > 0) & ~steps.is_first & is_behind]
