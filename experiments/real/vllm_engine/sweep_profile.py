"""A cost profile of an installed vLLM, from the logged iterations of its sweeps alone."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from testbed.core.specs import GpuSpec, ModelSpec
from testbed.cost.beside_prompts import BESIDE
from testbed.cost.launch_slowness import SLOWNESS
from testbed.cost.launches import UNSEEN
from testbed.cost.sections import FORMAT, check_profile
from testbed.experiments.real.vllm_engine.decode_fit import DecodeFit, fit_decodes
from testbed.experiments.real.vllm_engine.forms import OF_SUMS, Form
from testbed.experiments.real.vllm_engine.growth_fit import fit_growth
from testbed.experiments.real.vllm_engine.launch_fit import LaunchFit, fit_launches
from testbed.experiments.real.vllm_engine.launch_terms import MOST
from testbed.experiments.real.vllm_engine.logged_steps import (
    lone_prompts,
    prompts_among_decodes,
    prompts_behind_prompts,
    prompts_in_a_row,
    steady_decodes,
)
from testbed.experiments.real.vllm_engine.prompt_fit import PromptFit, fit_prompts
from testbed.experiments.real.vllm_engine.smooth import lower_hull

US = 1e3  # microseconds in a millisecond
LONGEST = 16  # doublings of tokens in tables that are computed from a fit
PASTS = (0, *(1 << power for power in range(10, LONGEST + 1)))
OF_HULL = (  # notes
    "whole iterations without attention, output and sampling included: the lower convex hull",
    "decodes above the hull",
)
OF_PROMPTS = (
    "whole iterations without attention, a prompt's output and sampling included",
    "decodes beyond that, whose output has a row for each",
)
Section = dict[str, Any]


class Machine(NamedTuple):
    """The measured machine: a model on num_gpus GPUs of a vLLM, the sizes of its CUDA graphs.

    gpu: the data sheet, None if there is none. fingerprint: the source, the system and the device
    of the measurement.
    """

    model: ModelSpec
    num_gpus: int
    graph_sizes: Sequence[int]
    gpu: GpuSpec | None
    fingerprint: Mapping[str, Any]


def profile_of(steps: pd.DataFrame, machine: Machine, form: Form = OF_SUMS) -> dict[str, Any]:
    """The profile that these iterations give. Raises InputError if a kind of them is missing."""
    sizes = sorted(machine.graph_sizes)
    largest_graph = sizes[-1] if sizes else 0
    lone, among = lone_prompts(steps), prompts_among_decodes(steps)
    decodes = fit_decodes(steady_decodes(steps), sizes, form.of_decodes)
    launches = fit_launches(lone, among, decodes, largest_graph, form.prompts, form.beyond)
    first_launch_ms = launches.first_of(1)
    in_a_row = prompts_in_a_row(steps)
    prompts = fit_prompts(lone, in_a_row, first_launch_ms, largest_graph, form.alone)
    if among.empty:
        behind = prompts_behind_prompts(steps)
        growth = fit_growth(lone, behind, decodes, prompts, largest_graph)
        launches = launches._replace(prompts=growth)
    prompts = form.beside(prompts, among, decodes, launches, largest_graph)
    longest = int(steps.num_tokens.max())
    within = form.within_graphs(among, decodes, launches, prompts, sizes)
    sections = {
        **_layers(decodes, prompts, within.times, largest_graph, longest, machine.model.num_layers),
        **_attention(decodes, prompts, machine.model),
        **_beside(within.per_decode, prompts.per_decode, largest_graph, longest),
        **_launches(launches, decodes, prompts.later_ms),
        **_unseen(launches.unseen, largest_graph),
        **_slowness(form.slowness(among, decodes)),
    }
    profile = {
        "format": FORMAT,
        "fingerprint": dict(machine.fingerprint),
        "model": asdict(machine.model),
        "num_gpus": machine.num_gpus,
        "gpu": asdict(machine.gpu) if machine.gpu else None,
        "cuda_graph_sizes": sizes,
        "sections": sections,
    }
    check_profile(profile, "the profile")
    return profile


def _layers(
    decodes: DecodeFit,
    prompts: PromptFit,
    within: Mapping[int, float],
    largest_graph: int,
    longest: int,
    num_layers: int,
) -> dict[str, Section]:
    """Everything but attention: the times of prompts within the graphs, or if these are not known
    the hull of decodes and of prompts beyond the largest graph. The rest of the time of decodes is
    theirs alone.
    """
    of_decodes = dict(zip(decodes.num_seqs, map(float, decodes.at_zero), strict=True))
    beyond = max(2 * largest_graph, decodes.num_seqs[-1] + 1)
    of_prompts = {count: prompts.linear_ms(count) for count in (beyond, max(longest, 2 * beyond))}
    hull = lower_hull({**of_decodes, **of_prompts})
    if not within:
        above = {count: ms - hull[count] for count, ms in of_decodes.items()}
        return _linear_and_graph(hull, above, num_layers, OF_HULL)
    linear = {**within, **{count: ms for count, ms in hull.items() if count > largest_graph}}
    return _linear_and_graph(linear, _beyond(linear, decodes, [*within]), num_layers, OF_PROMPTS)


def _beyond(
    linear: Mapping[int, float], decodes: DecodeFit, sizes: Sequence[int]
) -> dict[int, float]:
    """The time of decodes beyond linear, by their number: alike for all that are padded alike."""
    padded = [size for size in sizes if size <= decodes.num_seqs[-1]]
    counts = sorted({*padded, *decodes.num_seqs})
    of_decodes = np.interp(counts, decodes.num_seqs, decodes.at_zero)
    above = of_decodes - np.interp(counts, [*linear], [*linear.values()])
    first = [1, *(count + 1 for count in counts[:-1])]
    return {
        count: float(ms)
        for ends, ms in zip(zip(first, counts, strict=True), above, strict=True)
        for count in ends
    }


def _linear_and_graph(
    linear_ms: Mapping[int, float],
    above: Mapping[int, float],
    num_layers: int,
    notes: tuple[str, str],
) -> dict[str, Section]:
    """Both sections. linear_ms: of all layers, by tokens; above: milliseconds of decodes beyond
    that, by their number.
    """
    linear = _section(
        ("num_tokens",),
        [[count, ms * US / num_layers] for count, ms in linear_ms.items()],
        notes[0],
        includes=["cache_write", "output_head"],
    )
    points = [["paged", count, ms * US] for count, ms in above.items()]
    return {"linear": linear, "launched_graph": _section(("kernel", "num_seqs"), points, notes[1])}


def _attention(decodes: DecodeFit, prompts: PromptFit, model: ModelSpec) -> dict[str, Section]:
    decode_points = [
        [count, count * mean, per_token * count * mean * US / model.num_layers]
        for count, per_token in zip(decodes.num_seqs, decodes.per_token, strict=True)
        for mean in (1, model.max_len)
    ]
    prompt_points = [
        [
            1,
            new,
            past,
            prompts.attention_ms(new * past + new * (new + 1) / 2) * US / model.num_layers,
        ]
        for new in (1 << power for power in range(LONGEST))
        for past in PASTS
    ]
    per_token = "milliseconds for each token read: the median slope over contexts"
    per_pair = "milliseconds for each pair of a query and a key, by least squares"
    return {
        "decode_attention": _section(("num_seqs", "total_context"), decode_points, per_token),
        "prefill_attention": _section(
            ("num_seqs", "new_tokens", "past_tokens"), prompt_points, per_pair
        ),
    }


def _beside(
    within_ms: float, beyond_ms: float, largest_graph: int, longest: int
) -> dict[str, Section]:
    """The part of decodes beside prompts, if they add any. within_ms, beyond_ms: of each decode
    within the graphs and beyond.
    """
    each = {largest_graph: within_ms, max(longest, largest_graph + 1): beyond_ms}
    if not any(each.values()):
        return {}
    points = [
        [num_tokens, num_seqs, ms * num_seqs * US]
        for num_tokens, ms in each.items()
        for num_seqs in (1, MOST)
    ]
    note = "rows of output, and attention in a mixed batch: the same for each decode"
    return {BESIDE: _section(("num_tokens", "num_seqs"), points, note)}


def _launches(launches: LaunchFit, decodes: DecodeFit, later_ms: float) -> dict[str, Section]:
    prompt_points = [
        [part, num_tokens, num_seqs, ms * US]
        for num_tokens, curve in launches.prompts.items()
        for num_seqs, whole in curve.items()
        for first in (launches.first_of(num_seqs) + later_ms,)
        for part, ms in (("first", min(first, whole)), ("whole", whole))
    ]
    decode_points = [
        [part, num_seqs, min(ms, decodes.ms(num_seqs, num_seqs)) * US]
        for part, curve in (("first", launches.first_decodes), ("whole", launches.whole_decodes))
        for num_seqs, ms in curve.items()
    ]
    note = "the host plans, prepares and launches; medians"
    axes = ("part", "num_tokens", "num_seqs")
    sections = {"launch_prompts": _section(axes, prompt_points, note)}
    if decode_points:
        sections["launch_decodes"] = _section(("part", "num_seqs"), decode_points, note)
    return sections


def _unseen(ms: float, largest_graph: int) -> dict[str, Section]:
    """The part of numbers of tokens that the host has not launched, if there is any."""
    if not ms:
        return {}
    note = "cuBLAS looks kernels up for a number of tokens that is launched the first time"
    return {UNSEEN: _section(("num_tokens",), [[largest_graph + 1, ms * US]], note)}


def _slowness(points: Sequence[Sequence[Any]]) -> dict[str, Section]:
    """The host's slowness from moment to moment, if its sweeps show it."""
    if not points:
        return {}
    note = "no time: launches of prompts over the mean of their kind, from that moment on"
    return {SLOWNESS: _section(("moment_ms",), points, note)}


def _section(
    axes: Sequence[str], points: Sequence[Sequence[Any]], note: str, **more: Any
) -> Section:
    rounded = [[*row[: len(axes)], round(float(row[len(axes)]), 3)] for row in points]
    return {"axes": list(axes), "columns": ["us"], "note": note, **more, "points": rounded}
