"""Figure 12: basic sampling, three models, two data sets."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.paper.figures.rate_curves import draw_panels

TITLES = {
    "opt-13b sharegpt": "(a) OPT-13B, 1 GPU, ShareGPT",
    "opt-66b sharegpt": "(b) OPT-66B, 4 GPUs, ShareGPT",
    "opt-175b sharegpt": "(c) OPT-175B, 8 GPUs, ShareGPT",
    "opt-13b alpaca": "(d) OPT-13B, 1 GPU, Alpaca",
    "opt-66b alpaca": "(e) OPT-66B, 4 GPUs, Alpaca",
    "opt-175b alpaca": "(f) OPT-175B, 8 GPUs, Alpaca",
}


def draw(table: pd.DataFrame) -> Figure:
    """Two rows of three, over both columns of a page."""
    return draw_panels(table, TITLES, 2, 3, (7.0, 3.6))
