"""Figure 17: the chatbot workload."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.paper.figures.rate_curves import draw_panels


def draw(table: pd.DataFrame) -> Figure:
    """One panel."""
    return draw_panels(table, {"opt-13b chatbot": "OPT-13B, chatbot"}, 1, 1, 2.4)
