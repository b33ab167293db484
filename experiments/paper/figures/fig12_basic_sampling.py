"""Figure 12: basic sampling, three models, two data sets."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.paper.figures.rate_curves import draw_panels

TITLES = {
    "opt-13b sharegpt": "(a) OPT-13B, 1 GPU,\nShareGPT",
    "opt-66b sharegpt": "(b) OPT-66B, 4 GPUs,\nShareGPT",
    "opt-175b sharegpt": "(c) OPT-175B, 8 GPUs,\nShareGPT",
    "opt-13b alpaca": "(d) OPT-13B, 1 GPU,\nAlpaca",
    "opt-66b alpaca": "(e) OPT-66B, 4 GPUs,\nAlpaca",
    "opt-175b alpaca": "(f) OPT-175B, 8 GPUs,\nAlpaca",
}


def draw(table: pd.DataFrame) -> Figure:
    """The paper's first row on the left, its second on the right."""
    return draw_panels(table, TITLES, 3, 2, 5.2)
