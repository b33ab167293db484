"""Table 1: models, their servers, and how many tokens the KV cache holds."""

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from experiments.paper.figures.published import published
from experiments.paper.style import RC, new_figure

ROWS = {
    "parameters_memory": ("Parameter size", "{:.0f} GiB"),
    "kv_memory": ("Memory for KV cache", "{:.0f} GiB"),
    "kv_slots": ("Max. # KV cache slots", "{:,.0f}"),
}
PUBLISHED_SLOTS = "Published"


def draw(table: pd.DataFrame) -> Figure:
    """A table of text; below our slots the paper's."""
    with mpl.rc_context(RC):
        servers = table[table["figure"] == "table1"].pivot_table(
            index="quantity", columns="setting", values="simulated", sort=False
        )
        texts = [[form.format(servers.loc[key, name]) for name in servers.columns] for key, (_, form) in ROWS.items()]
        theirs = published("table1").query("quantity == 'kv_slots'").set_index("setting")["published"]
        texts.append([f"{theirs[name]:,.0f}" for name in servers.columns])
        figure = new_figure(height_in=1.15)
        axes = figure.subplots()
        axes.axis("off")
        columns = [name.replace(" ", "\n", 1).upper().replace("X", "x") for name in servers.columns]
        labels = [*(label for label, _ in ROWS.values()), PUBLISHED_SLOTS]
        body = axes.table(texts, rowLabels=labels, colLabels=columns, loc="center")
        body.auto_set_font_size(False)
        body.set_fontsize(6.5)
        for (row, _), cell in body.get_celld().items():
            cell.set_linewidth(0.4)
            cell.set_height(0.34 if row == 0 else 0.2)
        return figure
