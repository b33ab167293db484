"""Figure 14: parallel sampling and beam search."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.paper.figures.rate_curves import draw_panels

TITLES = {
    "opt-13b alpaca parallel 2": "(a) Parallel generation (size = 2)",
    "opt-13b alpaca parallel 4": "(b) Parallel generation (size = 4)",
    "opt-13b alpaca parallel 6": "(c) Parallel generation (size = 6)",
    "opt-13b alpaca beam 2": "(d) Beam search (width = 2)",
    "opt-13b alpaca beam 4": "(e) Beam search (width = 4)",
    "opt-13b alpaca beam width 6": "(f) Beam search (width = 6)",
}


def draw(table: pd.DataFrame) -> Figure:
    """Two rows of three, over both columns of a page."""
    return draw_panels(table, TITLES, 2, 3, (7.0, 3.6))
