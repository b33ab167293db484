"""Launches of a host whose sweeps have no prompts among decodes.

They are those of another host with the same vLLM, scaled by what both launch for a lone prompt:
within the graphs, which decodes are too, and beyond.
"""

from collections.abc import Mapping
from typing import Any

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from testbed.cost.model import Work
from testbed.cost.profile import ProfileCost

WHOLE = "whole"
US_PS = 10**6
Profile = dict[str, Any]


def with_launches_of(profile: Profile, other: Mapping[str, Any]) -> Profile:
    """The profile with the other's launches, scaled to its own lone prompts; unchanged where it has
    those of decodes. Raises InputError where the other lacks them too.
    """
    sections = profile["sections"]
    if "launch_decodes" in sections:
        return profile
    if not {"launch_decodes", "launch_prompts"} <= set(other["sections"]):
        raise InputError(
            f"--launches-from: the profile of {other['model']['name']} has no launches of decodes "
            "(give one that testbed gpu calibrate --system vllm made)"
        )
    scales = _scales(profile, other)
    longest_us = _decodes_us(profile)
    prompts = [
        [part, tokens, seqs, round(us * scale, 3)]
        for tokens, scale in scales.items()
        for part, measured, seqs, us in other["sections"]["launch_prompts"]["points"]
        if measured == tokens
    ]
    within = next(iter(scales.values()))
    decodes = [
        [part, seqs, round(min(us * within, longest_us(seqs)), 3)]
        for part, seqs, us in other["sections"]["launch_decodes"]["points"]
    ]
    said = ", ".join(f"{scale:.2f} to {tokens} tokens" for tokens, scale in scales.items())
    origin = {
        "launches_from": f"{other['fingerprint']['host']}, times {said}, by lone prompts",
        **profile["fingerprint"],
    }
    changed = {
        "launch_prompts": {**other["sections"]["launch_prompts"], "points": prompts},
        "launch_decodes": {**other["sections"]["launch_decodes"], "points": decodes},
    }
    return {**profile, "fingerprint": origin, "sections": {**sections, **changed}}


def _scales(profile: Mapping[str, Any], other: Mapping[str, Any]) -> dict[int, float]:
    """By the tokens up to which the other's launches hold: how much longer a lone prompt takes."""
    own, others = _lone(profile), _lone(other)
    if len(own) != len(others):
        raise InputError(
            "--launches-from: both need prompts within the CUDA graphs and beyond them"
        )
    pairs = zip(others.items(), own.values(), strict=True)
    return {tokens: us / other_us for (tokens, other_us), us in pairs}


def _lone(profile: Mapping[str, Any]) -> dict[int, float]:
    """Microseconds of launching a lone prompt, by the most tokens that they hold for."""
    points = profile["sections"]["launch_prompts"]["points"]
    return {tokens: us for part, tokens, seqs, us in sorted(points) if part == WHOLE and seqs == 1}


def _decodes_us(profile: Mapping[str, Any]) -> Any:
    """Microseconds that so many decodes compute at least: they are launched no longer."""
    cost = ProfileCost(ModelSpec(**profile["model"]), None, profile)
    return lambda seqs: cost.iteration(Work(seqs, seqs, 1)) / US_PS
