"""Launches of a host whose sweeps have no prompts among decodes.

They are those of another host with the same vLLM, scaled by what both launch for a lone prompt:
within the graphs, which decodes are too, and beyond.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from testbed.cost.model import Work
from testbed.cost.profile import ProfileCost

WHOLE = "whole"
WITHIN, BEYOND = "within the graphs", "beyond them"
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
    own, others = _lone(profile), _lone(other)
    of_decodes = WITHIN if profile["cuda_graph_sizes"] else BEYOND
    scales = _scales(own, others, of_decodes)
    longest_us = _decodes_us(profile)
    prompts = [
        [part, own[kind].num_tokens, seqs, round(us * scales[kind], 3)]
        for kind in own
        for part, tokens, seqs, us in other["sections"]["launch_prompts"]["points"]
        if tokens == others[kind].num_tokens
    ]
    decodes = [
        [part, seqs, round(min(us * scales[of_decodes], longest_us(seqs)), 3)]
        for part, seqs, us in other["sections"]["launch_decodes"]["points"]
    ]
    said = ", ".join(f"{scale:.2f} {kind}" for kind, scale in scales.items())
    origin = {
        "launches_from": f"{other['fingerprint']['host']}, times {said}, by lone prompts",
        **profile["fingerprint"],
    }
    changed = {
        "launch_prompts": {**other["sections"]["launch_prompts"], "points": prompts},
        "launch_decodes": {**other["sections"]["launch_decodes"], "points": decodes},
    }
    return {**profile, "fingerprint": origin, "sections": {**sections, **changed}}


class Lone(NamedTuple):
    """Microseconds of launching a lone prompt of up to so many tokens."""

    num_tokens: int
    us: float


def _lone(profile: Mapping[str, Any]) -> dict[str, Lone]:
    """Launches of lone prompts within the profile's own CUDA graphs, and beyond them."""
    largest_graph = max(profile["cuda_graph_sizes"] or [0])
    points = profile["sections"]["launch_prompts"]["points"]
    return {
        WITHIN if tokens <= largest_graph else BEYOND: Lone(tokens, us)
        for part, tokens, seqs, us in sorted(points)
        if part == WHOLE and seqs == 1
    }


def _scales(own: Mapping[str, Lone], others: Mapping[str, Lone], needed: str) -> dict[str, float]:
    """How much longer a lone prompt of each kind takes. Raises InputError where the kinds differ,
    or the one that is needed is missing.
    """
    if needed not in own or own.keys() != others.keys():
        raise InputError(
            f"--launches-from: has lone prompts {_said(others)}, and the logs have {_said(own)} "
            "(log prompts of as many tokens as the CUDA graphs have, and of more)"
        )
    return {kind: lone.us / others[kind].us for kind, lone in own.items()}


def _said(lone: Mapping[str, Lone]) -> str:
    """Which prompts a profile has."""
    return " and ".join(lone) or "none"


def _decodes_us(profile: Mapping[str, Any]) -> Any:
    """Microseconds that so many decodes compute at least: they are launched no longer."""
    cost = ProfileCost(ModelSpec(**profile["model"]), None, profile)
    return lambda seqs: cost.iteration(Work(seqs, seqs, 1)) / US_PS
