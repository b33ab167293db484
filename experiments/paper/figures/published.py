"""The paper's own numbers, for figures that show them beside ours."""

import pandas as pd

from experiments.paper.scorecard import reference

COLOR = "#c9ccd1"  # of published bars beside ours


def published(figure: str) -> pd.DataFrame:
    """setting, system, quantity and the published number of a figure's rows that are single numbers."""
    rows = reference().query("figure == @figure")
    numbers = pd.to_numeric(rows["published"], errors="coerce")
    return rows.assign(published=numbers)[numbers.notna()][["setting", "system", "quantity", "published"]]


def published_range(figure: str, quantity: str) -> tuple[float, float]:
    """The ends of a range such as 20-26."""
    (text,) = set(reference().query("figure == @figure and quantity == @quantity")["published"])
    low, high = str(text).split("-")
    return float(low), float(high)
