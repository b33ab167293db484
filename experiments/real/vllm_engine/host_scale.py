"""Launches of a host whose sweeps have no prompts among decodes.

Launches of prompts are the host's own up to the most requests that it shows, and grow beyond as
those of another host with the same vLLM, scaled to meet there. All else is the other host's, scaled
by what both launch for a lone prompt: within the graphs, which decodes are too, and beyond.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from testbed.cost.model import Work
from testbed.cost.profile import ProfileCost

FIRST, WHOLE = "first", "whole"
WITHIN, BEYOND = "within the graphs", "beyond them"
US_PS = 10**6
Profile = dict[str, Any]


def with_launches_of(profile: Profile, other: Mapping[str, Any]) -> Profile:
    """The profile with the other's launches if it has none, scaled to its own; unchanged if
    it has those of decodes. Raises InputError if the other lacks them too.
    """
    sections = profile["sections"]
    if "launch_decodes" in sections:
        return profile
    if not {"launch_decodes", "launch_prompts"} <= set(other["sections"]):
        raise InputError(
            key=f"the profile of {other['model']['name']}",
            problem="has no launches of decodes",
            remedy="give one that testbed gpu calibrate --system vllm made",
        )
    own, others = _launches(profile), _launches(other)
    of_decodes = WITHIN if profile["cuda_graph_sizes"] else BEYOND
    _check_kinds(own, others, of_decodes)
    scales = {kind: own[kind].us(WHOLE, 1) / others[kind].us(WHOLE, 1) for kind in own}
    points = {
        "launch_prompts": [
            [part, own[kind].num_tokens, seqs, round(us, 3)]
            for kind in own
            for part, seqs, us in _joined(own[kind], others[kind], scales[kind])
        ],
        "launch_decodes": _scaled_decodes(other, scales[of_decodes], _decodes_us(profile)),
    }
    changed = {name: {**other["sections"][name], "points": rows} for name, rows in points.items()}
    origin = {"launches_from": _origin(other, own, scales), **profile["fingerprint"]}
    return {**profile, "fingerprint": origin, "sections": {**sections, **changed}}


def _scaled_decodes(
    other: Mapping[str, Any], scale: float, longest_us: Callable[[int], float]
) -> list[list[Any]]:
    """The other's launches of decodes, by part and requests, each at most the whole iteration."""
    return [
        [part, seqs, round(min(us * scale, longest_us(seqs)), 3)]
        for part, seqs, us in other["sections"]["launch_decodes"]["points"]
    ]


def _origin(
    other: Mapping[str, Any], own: Mapping[str, "Launches"], scales: Mapping[str, float]
) -> str:
    """The other's host and the factors, as the fingerprint states them."""
    factors = ", ".join(
        f"{scale:.2f} {kind} by lone prompts (own up to {max(own[kind].parts[WHOLE])} requests)"
        for kind, scale in scales.items()
    )
    return f"{other['fingerprint']['host']}, times {factors}"


class Launches(NamedTuple):
    """Microseconds of launching prompts, by their most tokens: by part, then by requests."""

    num_tokens: int
    parts: dict[str, dict[int, float]]

    def us(self, part: str, seqs: int) -> float:
        """Linear between the points, and flat beyond them."""
        counts, times = zip(*sorted(self.parts[part].items()), strict=True)
        return float(np.interp(seqs, counts, times))


def _launches(profile: Mapping[str, Any]) -> dict[str, Launches]:
    """Launches of prompts within the profile's own CUDA graphs, and beyond; only kinds that have
    lone prompts.
    """
    largest_graph = max(profile["cuda_graph_sizes"] or [0])
    kinds = dict[str, Launches]()
    for part, tokens, seqs, us in profile["sections"]["launch_prompts"]["points"]:
        kind = WITHIN if tokens <= largest_graph else BEYOND
        of_kind = kinds.setdefault(kind, Launches(tokens, {}))
        of_kind.parts.setdefault(part, {})[seqs] = us
    return {kind: launches for kind, launches in kinds.items() if 1 in launches.parts[WHOLE]}


def _joined(own: Launches, other: Launches, scale: float) -> Iterator[tuple[str, int, float]]:
    """The whole launch is the own one up to its last point, and grows beyond as the other does; the
    first part of it is the other's.
    """
    last = max(own.parts[WHOLE])
    beyond = own.us(WHOLE, last) / other.us(WHOLE, last)
    for seqs in sorted({*own.parts[WHOLE], *other.parts[WHOLE]}):
        total_us = own.us(WHOLE, seqs) if seqs <= last else beyond * other.us(WHOLE, seqs)
        if FIRST in other.parts:
            yield FIRST, seqs, min(scale * other.us(FIRST, seqs), total_us)
        yield WHOLE, seqs, total_us


def _check_kinds(own: Mapping[str, Any], others: Mapping[str, Any], needed: str) -> None:
    """Raises InputError if the kinds of lone prompts differ, or the one that is needed is
    missing.
    """
    if needed not in own or own.keys() != others.keys():
        raise InputError(
            key="the sweeps",
            problem=(
                f"have lone prompts {_listed(own)}, and those that their launches are taken from "
                f"{_listed(others)}"
            ),
            remedy="log prompts of as many tokens as the CUDA graphs have, and of more",
        )


def _listed(kinds: Iterable[str]) -> str:
    """The prompts that a profile has."""
    return " and ".join(kinds) or "none"


def _decodes_us(profile: Mapping[str, Any]) -> Any:
    """The least microseconds that decodes compute, by their number: launches take no longer."""
    cost = ProfileCost(ModelSpec(**profile["model"]), None, profile)
    return lambda seqs: cost.iteration(Work(seqs, seqs, 1)) / US_PS
