"""Figure 14: parallel sampling and beam search."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.paper.figures.rate_curves import draw_panels

TITLES = {
    "opt-13b alpaca parallel 2": "(a) Parallel sampling, 2",
    "opt-13b alpaca parallel 4": "(b) Parallel sampling, 4",
    "opt-13b alpaca parallel 6": "(c) Parallel sampling, 6",
    "opt-13b alpaca beam 2": "(d) Beam search, 2",
    "opt-13b alpaca beam 4": "(e) Beam search, 4",
    "opt-13b alpaca beam width 6": "(f) Beam search, 6",
}


def draw(table: pd.DataFrame) -> Figure:
    """The paper's first row on the left, its second on the right."""
    return draw_panels(table, TITLES, 3, 2, 5.2)
