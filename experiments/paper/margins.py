"""How far a simulated number lies inside the limits of its published one."""

import re
from collections.abc import Mapping, Sequence
from math import inf

from testbed.experiments.paper.studies.study import Finding


def smallest_margin(row: Mapping[str, str], finding: Finding) -> float:
    """The smallest margin of all that the finding claims; its numbers are compared with the row's limits."""
    values = finding.simulated if isinstance(finding.simulated, tuple) else (finding.simulated,)
    numbers = [value for value in values if not isinstance(value, str)]
    margins = ends_margins(row, numbers) if row["check"] == "ends" else [margin(row, value) for value in numbers]
    return min([*margins, *([] if finding.margin is None else [finding.margin])])


def margin(row: Mapping[str, str], value: float) -> float:
    """The distance to the nearest limit in units of the tolerance: 1 in the middle, 0 at a limit, below 0 outside.

    The unit is half the width of what passes, which for a published value is its tolerance; for a bound the bound.
    """
    low, high = limits(row["check"], row["published"], row["tolerance"])
    if low == -inf:
        return (high - value) / high
    return min(value - low, high - value) / ((high - low) / 2)


def ends_margins(row: Mapping[str, str], values: Sequence[float]) -> list[float]:
    """The smallest number must be the published range's lower end, the largest its upper, each by the tolerance."""
    found = zip(row["published"].split("-"), (min(values), max(values)), strict=True)
    return [margin({**row, "check": "value", "published": end}, value) for end, value in found]


def limits(check: str, published: str, tolerance: str) -> tuple[float, float]:
    """The smallest and the largest simulated number that passes."""
    amount = float(match[0]) if (match := re.search(r"\d+(\.\d+)?", tolerance)) else 0.0
    if check == "bound":
        return -inf, amount if match else float(published)
    if check == "range":
        low, high = (float(end) for end in published.split("-"))
        return low - amount, high + amount
    value = float(published.removeprefix("about "))
    if "%" in tolerance:
        amount *= abs(value) / 100
    return value - amount, value + amount


def error(published: str, value: float | str, tolerance: str) -> str:
    """The difference, in the unit of the tolerance; empty where the published thing is no single number."""
    try:
        difference = float(value) - float(published)
    except ValueError:
        return ""
    if "point" in tolerance:
        return f"{difference:+.2f} points"
    return f"{100 * difference / float(published):+.1f}%" if float(published) else f"{difference:+.2f}"
