"""Figure 16: translation behind a shared prefix."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.paper.figures.rate_curves import draw_panels

TITLES = {
    "llama-13b wmt16 en-de 1-shot prefix 80 tokens": "(a) 1-shot prefix",
    "llama-13b wmt16 en-de 5-shot prefix 341 tokens": "(b) 5-shot prefix",
}


def draw(table: pd.DataFrame) -> Figure:
    """Two panels side by side."""
    return draw_panels(table, TITLES, 1, 2, 2.2)
