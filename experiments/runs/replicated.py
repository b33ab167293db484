"""A sweep over seeds as columns of text: means with intervals, and differences on the same
seeds.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from testbed.experiments.runs.points import Setting
from testbed.experiments.runs.quantities import Quantity, main_quantities, number, quantities
from testbed.study.replications import NOT_DISTINGUISHABLE, Interval, interval, paired

POOL = ("server.num_blocks", "server.kv_memory_gib")  # which a server's command fixes
COMMAND = "command"  # the axis of several servers' commands
EQUAL = "equal"  # on every seed
Columns = Mapping[str, Sequence[str]]


class SettingMean(NamedTuple):
    """A main number of a setting over its seeds; title: its name and unit."""

    chosen: Mapping[str, str]
    title: str
    interval: Interval


def setting_means(groups: Sequence[Setting]) -> Iterator[SettingMean]:
    """The main numbers of each setting; without those that a seed lacks, for a mean of the others
    would be another one.
    """
    for group in groups:
        for quantity in main_quantities(quantities()):
            values = _values(quantity, group)
            if len(values) == len(group.points):
                yield SettingMean(group.chosen, quantity.title, interval(list(values.values())))


def cells_of(num_seeds: str) -> str:
    """The meaning of a cell that is an `Interval`, in words."""
    if num_seeds == "1":
        return "cells: one seed, so that no interval is known"
    few = "; two are too few for an interval: --seeds 5 narrows it" if num_seeds == "2" else ""
    return (
        f"cells: mean of {num_seeds} seeds ± half of its 95% interval (Student's t); without ± the "
        f"seeds are equal{few}"
    )


def explained(groups: Sequence[Setting]) -> str:
    """The meaning of the cells of the tables."""
    counts = sorted({len(group.points) for group in groups})
    numbers = " or ".join(map(str, counts))
    return cells_of(numbers)


def mean_columns(groups: Sequence[Setting]) -> tuple[Columns, Columns]:
    """The axes, and the main numbers with their intervals; a row for each setting. Settings that
    follow from a server's command are not named beside it.
    """
    means = {
        quantity.title: [_mean(quantity, group) for group in groups]
        for quantity in main_quantities(quantities())
    }
    shown = {title: cells for title, cells in means.items() if any(cell != "-" for cell in cells)}
    left = _axes(groups)
    if COMMAND in left:
        left = {name: left[name] for name in [COMMAND, *_free_axes(groups, COMMAND)]}
    return left, shown


def difference_columns(groups: Sequence[Setting]) -> tuple[Columns, Columns]:
    """Each value of the first axis of names less the first value, at equal other axes and on the
    same seeds; empty without such pairs.
    """
    pairs = _pairs(groups)
    if not pairs:
        return {}, {}
    name = _compared_axis(groups)
    others = _free_axes(groups, name)
    left = {key: [group.chosen[key] for group, _ in pairs] for key in others}
    texts = [f"{group.chosen[name]} - {first.chosen[name]}" for group, first in pairs]
    results = {
        quantity.title: [_difference(quantity, *pair) for pair in pairs]
        for quantity in main_quantities(quantities())
    }
    shown = {title: cells for title, cells in results.items() if any(cell != "-" for cell in cells)}
    return {**left, name: texts}, shown


def _axes(groups: Sequence[Setting]) -> Columns:
    return {key: [group.chosen[key] for group in groups] for key in groups[0].chosen}


def _compared_axis(groups: Sequence[Setting]) -> str:
    """The first axis whose values are not all numbers, else the first; empty without an axis. A
    pool comes last.
    """
    axes = _axes(groups)
    words = [name for name in axes if not all(map(_is_number, axes[name]))]
    return min([*words, *axes], key=POOL.__contains__, default="")


def _free_axes(groups: Sequence[Setting], name: str) -> list[str]:
    """The other axes, without those that follow from the value of this one, as a pool's blocks
    follow from their size.
    """
    return [key for key in groups[0].chosen if key != name and not _follows(groups, name, key)]


def _follows(groups: Sequence[Setting], name: str, key: str) -> bool:
    values = dict[str, str]()
    pairs = [(group.chosen.get(name, ""), group.chosen[key]) for group in groups]
    return all(values.setdefault(value, other) == other for value, other in pairs)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _pairs(groups: Sequence[Setting]) -> list[tuple[Setting, Setting]]:
    """Each setting with the one that has the first value of the compared axis, if another one. An
    axis that the first setting lacks, as the acceptance of drafts beside none, need not be equal.
    """
    name = _compared_axis(groups)
    others = [key for key in _free_axes(groups, name) if groups[0].chosen[key]]
    firsts = dict[tuple[tuple[str, str], ...], Setting]()
    pairs = []
    for group in groups if name else ():
        place = tuple((key, group.chosen[key]) for key in others)
        first = firsts.setdefault(place, group)
        if first is not group and len(group.points) > 1:
            pairs.append((group, first))
    return pairs


def _values(quantity: Quantity, group: Setting) -> dict[str, float]:
    """The quantity by seed, without seeds that lack it."""
    values = zip(
        group.seeds, (quantity.value(point.summary) for point in group.points), strict=True
    )
    return {seed: value for seed, value in values if value is not None}


def _mean(quantity: Quantity, group: Setting) -> str:
    """The mean; a dash if a seed lacks the number, for a mean of the others would be another."""
    values = _values(quantity, group)
    if len(values) < len(group.points):
        return "-"
    if len(values) == 1:
        return number(*values.values())
    return str(interval(list(values.values())))


def _less(quantity: Quantity, group: Setting, first: Setting) -> Interval | None:
    """The difference on the same seeds; None if a seed lacks the number."""
    values, reference = _values(quantity, group), _values(quantity, first)
    if values.keys() != reference.keys() or set(values) != set(group.seeds):
        return None
    return paired(list(values.values()), [reference[seed] for seed in values])


def _difference(quantity: Quantity, group: Setting, first: Setting) -> str:
    difference = _less(quantity, group, first)
    if difference is None:
        return "-"
    if difference.includes_zero:
        is_equal = _values(quantity, group) == _values(quantity, first)
        return EQUAL if is_equal else f"{NOT_DISTINGUISHABLE} ({difference})"
    return str(difference)
