"""The points of a sweep, its axes, and its settings: points that differ in their seed alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

SEED = "seed"


@dataclass(frozen=True)
class Point:
    """A point of a sweep, or with seeds one run of it.

    Attributes:
        values: the value of every override
        summary: its `summary.json`
        folder: the name of its run folder
    """

    values: dict[str, str]
    summary: dict[str, Any]
    folder: str


def axes(points: Sequence[Point]) -> list[str]:
    """The keys whose values differ between points, in the order of the command line."""
    return differing([point.values for point in points])


def differing(choices: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys whose values differ between the choices, in order of their first appearance."""
    keys = dict.fromkeys(key for chosen in choices for key in chosen)
    return [key for key in keys if len({chosen.get(key) for chosen in choices}) > 1]


class Setting(NamedTuple):
    """Points that differ in their seed alone, in order of the command line; `chosen` has the other
    axes.
    """

    chosen: Mapping[str, str]
    points: Sequence[Point]

    @property
    def seeds(self) -> list[str]:
        """The seed of each point."""
        return [point.values.get(SEED, "") for point in self.points]


def settings(points: Sequence[Point]) -> list[Setting]:
    """The settings of a sweep, in the order of their first points."""
    names = [name for name in axes(points) if name != SEED]
    groups = dict[tuple[str, ...], list[Point]]()
    for point in points:
        groups.setdefault(tuple(str(point.values.get(name, "")) for name in names), []).append(
            point
        )
    return [
        Setting(dict(zip(names, values, strict=True)), group) for values, group in groups.items()
    ]


def are_replicated(points: Sequence[Point]) -> bool:
    """True if the points' seeds differ."""
    return SEED in axes(points)
