"""A profile at the present speed of its host, by a short sweep of the vLLM that is about to serve.

A host launches faster or slower than when it was swept, for seconds and for minutes, and a started
engine launches beyond its graphs at a speed of its own. So a sweep of some ten seconds in that very
engine scales the profile's launches by two factors: within the graphs, which decodes are too, and
beyond them. A factor is the time of all launches of the sweep over the profile's; by the sweeps
that made the profile both are 1. What the GPU computes stays as it is.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from testbed.cost.host_drift import REFRESHED
from testbed.cost.launches import UNSEEN
from testbed.cost.profile import ProfileCost
from testbed.cost.sections import read_profile
from testbed.experiments.real.vllm_engine.host_scale import BEYOND, WITHIN
from testbed.experiments.real.vllm_engine.launch_fit import OVER
from testbed.experiments.real.vllm_engine.logged_steps import prompts_among_decodes, read_steps
from testbed.experiments.real.vllm_engine.profile_check import before_ms, launch_ms
from testbed.experiments.real.vllm_engine.sweep_folders import read_swept

NEEDED = ("launch_prompts", "launch_decodes")
FEWEST = 12  # launches that a factor rests on
MOST_HIDDEN = 0.5  # share of launches that may end before the GPU has computed what came before
Profile = dict[str, Any]
Factors = Mapping[str, float]


def check_refreshable(path: str | Path, model: ModelSpec) -> None:
    """Raise InputError for a profile of another model, or without launches."""
    profile = read_profile(path)
    ProfileCost(model, None, profile)
    if missing := [name for name in NEEDED if name not in profile["sections"]]:
        raise InputError(
            key="--refresh",
            value=path,
            problem=f"has no {missing[0]}",
            remedy="give a profile of testbed gpu calibrate --system vllm",
        )


def refreshed(path: str | Path, folder: Path) -> Profile:
    """The profile at the speed that the sweeps in a log show: rows of steps.csv in waves of
    waves.csv with prompts among decodes. Raises InputError for a log of another GPU or of other
    graphs, and for too few launches.
    """
    profile, swept = read_profile(path), read_swept([folder])
    about = profile["fingerprint"]
    _check_same("device", about.get("device"), swept.about.get("device"))
    _check_same("graph_sizes", profile["cuda_graph_sizes"], swept.facts.get("graph_sizes"))
    found = factors(read_steps(folder), profile)
    origin = {REFRESHED: {"from": str(path), **found}}
    return {**scaled(profile, found), "fingerprint": {**about, **origin}}


def _check_same(key: str, of_profile: Any, of_log: Any) -> None:
    """Raise InputError unless a fact of the profile is the log's, or the log has none."""
    if of_log is not None and of_profile != of_log:
        raise InputError(
            key="--refresh",
            problem=f"{key} of the profile is {of_profile}, and of this vLLM {of_log}",
            remedy="give the profile of the same server",
        )


def factors(steps: pd.DataFrame, profile: Mapping[str, Any]) -> dict[str, float]:
    """The time of the sweeps' launches over the profile's, by WITHIN and BEYOND the graphs. Raises
    InputError if it rests on fewer than FEWEST launches, or most are hidden.
    """
    rows = prompts_among_decodes(steps)
    rows = rows[rows.pass_s.notna()]
    cost = ProfileCost(ModelSpec(**profile["model"]), None, profile)
    every = list(rows.itertuples())
    rows = rows.assign(
        taken=rows.before_ms + rows.handed_ms,
        predicted=np.array([launch_ms(cost, row) for row in every], float),
        is_seen=rows.before_ms > OVER * np.array([before_ms(cost, row) for row in every], float),
    )
    is_beyond = rows.num_tokens > max(profile["cuda_graph_sizes"] or [0])
    kinds = {WITHIN: rows[~is_beyond], BEYOND: rows[is_beyond]}
    if not profile["cuda_graph_sizes"]:
        del kinds[WITHIN]
    return {kind: _factor(kind, of_kind) for kind, of_kind in kinds.items()}


def _factor(kind: str, rows: pd.DataFrame) -> float:
    seen = rows[rows.is_seen]
    if len(seen) < FEWEST or len(seen) < (1 - MOST_HIDDEN) * len(rows):
        raise InputError(
            key="--refresh",
            problem=(
                f"{len(seen)} of {len(rows)} launches of prompts {kind} are seen, and a factor "
                f"rests on {FEWEST} and half of them"
            ),
            remedy="take the profile as it is",
        )
    return round(float(seen.taken.sum() / seen.predicted.sum()), 3)


def scaled(profile: Profile, by: Factors) -> Profile:
    """The profile with its launches within and beyond the graphs scaled apart."""
    largest_graph, sections = max(profile["cuda_graph_sizes"] or [0]), profile["sections"]
    of_decodes = by[WITHIN if WITHIN in by else BEYOND]
    of_prompts = {
        tokens: by[WITHIN if tokens <= largest_graph else BEYOND]
        for _, tokens, *_ in sections["launch_prompts"]["points"]
    }
    changed = {
        "launch_prompts": [
            [*axes, round(us * of_prompts[axes[1]], 3)]
            for *axes, us in sections["launch_prompts"]["points"]
        ],
        "launch_decodes": [
            [*axes, round(us * of_decodes, 3)] for *axes, us in sections["launch_decodes"]["points"]
        ],
    }
    if UNSEEN in sections:
        changed[UNSEEN] = [
            [tokens, round(us * by[BEYOND], 3)] for tokens, us in sections[UNSEEN]["points"]
        ]
    changed_sections = {name: {**sections[name], "points": rows} for name, rows in changed.items()}
    return {**profile, "sections": {**sections, **changed_sections}}


def words(profile: Mapping[str, Any]) -> str:
    """The factors of a refreshed profile."""
    found = profile["fingerprint"][REFRESHED]
    by = ", ".join(f"{found[kind]:.2f} {kind}" for kind in (WITHIN, BEYOND) if kind in found)
    return f"launches just before the workload over those of {found['from']}: {by}"
