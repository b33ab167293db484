"""How far inside its tolerance a simulated number is."""

import re
from math import inf


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


def margin(row: dict[str, str], value: float) -> float:
    """The distance to the nearest limit in units of the tolerance: 1 in the middle, 0 at a limit, below 0 outside.

    The unit is half the width of what passes, which for a published value is its tolerance; for a bound the bound.
    """
    low, high = limits(row["check"], row["published"], row["tolerance"])
    if low == -inf:
        return (high - value) / high
    return min(value - low, high - value) / ((high - low) / 2)
