"""Figure 1, right: memory and throughput against batch size."""

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from experiments.paper.style import RC, SYSTEMS, new_figure

LOOKS = {"existing": ("Existing systems", SYSTEMS["orca-max"][1], 5), "vllm": ("vLLM", SYSTEMS["vllm"][1], 2.5)}


def draw(table: pd.DataFrame) -> Figure:
    """Memory above, throughput below, one x axis."""
    with mpl.rc_context(RC):
        figure = new_figure(height_in=3.0)
        memory, throughput = figure.subplots(2, 1, sharex=True)
        for system, (label, color, size) in LOOKS.items():
            curve = table[table["system"] == system].drop_duplicates("batch")
            for axes, column in ((memory, "memory_gib"), (throughput, "tokens_per_s")):
                axes.plot(curve["batch"], curve[column], color=color, marker="o", markersize=size, label=label)
        memory.axhline(table["parameters_gib"].iloc[0], color="black", linestyle=":", linewidth=0.8, label="Parameters")
        memory.set(ylabel="Memory (GiB)", ylim=(20, 40))
        throughput.set(xlabel="Batch size (# requests)", ylabel="Throughput (token/s)", ylim=(0, None), xlim=(0, None))
        handles, labels = memory.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3)
        return figure
