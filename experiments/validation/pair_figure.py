"""The paper's claim on hardware (Figures 2, 12, 13): paged against contiguous memory as measured, and simulated."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments.paper.style import KIND_COLORS, KIND_LABELS, RC, SYSTEMS, new_figure
from experiments.validation.pair_table import RATIOS, Pair, Summary, share
from testbed.core.errors import InputError

AT_ONE_RATE = {
    "contiguous-max": "orca-max",
    "contiguous-pow2": "orca-pow2",
    "contiguous-oracle": "orca-oracle",
    "paged-50": "vllm",
}
NAMES = ("Max", "Pow2", "Oracle", "Paged")
BY_RATE = ("paged-50", "paged-80", "paged-95", "paged-120")
WIDTH, DASHED = 0.38, (0, (3, 2))
SIMULATED = {"hatch": "/////", "edgecolor": "black", "linewidth": 0.4}
MEASURED = {"edgecolor": "black", "linewidth": 0.4}


def draw(pairs: Mapping[str, Pair]) -> Figure:
    """Three panels: mean batch and memory by kind at one rate, latency by rate; simulated bars are hatched."""
    absent = [name for name in (*AT_ONE_RATE, *BY_RATE) if name not in pairs]
    if absent:
        raise InputError(f"the figure needs the run {absent[0]}, which is not there: leave out --figure")
    with mpl.rc_context(RC):
        figure = new_figure(7.0, 2.7)
        batch, latency, memory = figure.subplots(1, 3, width_ratios=(1, 1.1, 1.1))
        chosen = [pairs[name] for name in AT_ONE_RATE]
        _batch(batch, chosen)
        _latency(latency, pairs)
        _memory(memory, chosen)
        kinds = [Patch(facecolor=KIND_COLORS[kind], label=label) for kind, label in KIND_LABELS.items()]
        both = [Patch(facecolor="white", label="Measured (left)", **MEASURED)]
        both.append(Patch(facecolor="white", label="Simulated (right)", **SIMULATED))
        figure.legend(handles=[*both, *kinds], loc="outside upper center", ncols=6, columnspacing=1.0, handlelength=1.5)
        return figure


def _batch(axes: Axes, chosen: Sequence[Pair]) -> None:
    colors = [SYSTEMS[system][1] for system in AT_ONE_RATE.values()]
    for place, summaries, look in _sides(chosen):
        heights = [summary["batch"]["mean_over_time"] for summary in summaries]
        axes.bar([i + place for i in range(len(chosen))], heights, WIDTH, color=colors, **look)
        for i, height in enumerate(heights):
            axes.text(i + place, height + 0.2, f"{height:.1f}", ha="center", fontsize=4.8)
    axes.set(ylabel="Batched requests", title=f"Batch at {_rate(chosen[0]):g} req/s", ylim=(0, None))
    _name(axes)


def _latency(axes: Axes, pairs: Mapping[str, Pair]) -> None:
    of = RATIOS["s/token"]
    for name, system in AT_ONE_RATE.items():
        _, color, marker = SYSTEMS[system]
        shown = [pairs[n] for n in (BY_RATE if name == "paged-50" else (name,))]
        rates = [_rate(pair) for pair in shown]
        real, ours = [of(p.real.summary) for p in shown], [of(p.ours.summary) for p in shown]
        axes.plot(rates, real, color=color, marker=marker, markersize=4)
        axes.plot(rates, ours, color=color, marker=marker, markersize=6, markerfacecolor="none", linestyle=DASHED)
    axes.set(xlabel="Request rate (req/s)", ylabel="Norm. latency (s/token)", title="Latency by rate", ylim=(0, None))
    handles = [
        Line2D([], [], color=color, marker=marker, markersize=4, label=name, linestyle="-" if name == "Paged" else "")
        for name, (_, color, marker) in zip(NAMES, map(SYSTEMS.get, AT_ONE_RATE.values()), strict=True)
    ]
    look = {"marker": "o", "markersize": 6, "markerfacecolor": "none", "linestyle": DASHED}
    handles.append(Line2D([], [], color="black", label="Simulated", **look))
    axes.legend(handles=handles, loc="upper center", fontsize=6)


def _memory(axes: Axes, chosen: Sequence[Pair]) -> None:
    for place, summaries, look in _sides(chosen):
        below = [0.0] * len(chosen)
        for kind, color in KIND_COLORS.items():
            heights = [100 * (share(summary, kind) or 0.0) for summary in summaries]
            axes.bar([i + place for i in range(len(chosen))], heights, WIDTH, bottom=below, color=color, **look)
            below = [low + height for low, height in zip(below, heights, strict=True)]
    axes.set(ylabel="KV cache (%)", title=f"Memory at {_rate(chosen[0]):g} req/s", ylim=(0, 100))
    _name(axes)


def _sides(chosen: Sequence[Pair]) -> list[tuple[float, list[Summary], dict]]:
    """Where the bars of each side stand, their summaries, and how they look."""
    real, ours = [pair.real.summary for pair in chosen], [pair.ours.summary for pair in chosen]
    return [(-WIDTH / 2, real, MEASURED), (WIDTH / 2, ours, SIMULATED)]


def _name(axes: Axes) -> None:
    axes.set_xticks(range(len(NAMES)), NAMES)


def _rate(pair: Pair) -> float:
    return float(pair.real.config["arrivals"]["rate"])
