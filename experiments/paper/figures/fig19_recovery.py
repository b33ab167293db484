"""Figure 19: recompute against swap, (a) the price of one recovery, (b) end to end, by block size."""

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from experiments.paper.figures.fig18_block_size import draw_curve
from experiments.paper.style import RC, new_figure

PRICES = {
    "recompute as drawn": ("Recompute", "#1f77b4", "o"),
    "swap in": ("Swap in", "#ffbb78", "v"),
    "swap out": ("Swap out", "#d62728", "^"),
    "swap in + out": ("Swap in + out", "#ff7f0e", "s"),
}
CURVES = {
    "recompute": ("Recompute", "#1f77b4", "o"),
    "swap": ("Swap", "#ff7f0e", "s"),
    "fused swap": ("Swap, fused kernel", "#2ca02c", "D"),
}
MACHINE = "a100-40gb"


def draw(table: pd.DataFrame) -> Figure:
    """Two panels; (a) is of the paper's machine, and shows the share of a recompute that the paper's figure shows."""
    with mpl.rc_context(RC):
        figure = new_figure(height_in=4.4)
        micro, blocks = figure.subplots(2, 1)
        prices = table[(table["figure"] == "fig19a") & table["setting"].isin([MACHINE, f"{MACHINE} fused"])]
        ms = prices.pivot_table(index="block_size", columns=["setting", "system"], values="simulated")
        both = {machine: ms[machine]["swap in"] + ms[machine]["swap out"] for machine in (MACHINE, f"{MACHINE} fused")}
        curves = {
            **{name: ms[MACHINE][name] for name in ("recompute as drawn", "swap in", "swap out")},
            "swap in + out": both[MACHINE],
        }
        draw_curve(micro, both[f"{MACHINE} fused"], "Swap in + out, fused", "#2ca02c", "D")
        share = (curves["recompute as drawn"] / ms[MACHINE]["recompute"]).mean()
        for name, curve in curves.items():
            label, *looks = PRICES[name]
            draw_curve(micro, curve, f"{label} x {share:g}" if name == "recompute as drawn" else label, *looks)
        micro.set_yscale("linear")
        micro.set(xlabel="Block size\n(a) Recovery of 256 tokens, A100", ylabel="Time (ms)", ylim=(0, None))
        micro.legend()
        means = table[table["figure"] == "fig19b"].groupby(["system", "block_size"])["simulated"].mean()
        for system, looks in CURVES.items():
            draw_curve(blocks, means[system], *looks)
        blocks.set_xlabel("Block size\n(b) End-to-end latency")
        blocks.legend(loc="upper center")
        return figure
