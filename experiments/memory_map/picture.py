"""memory_map.png: physical slots over time."""

from functools import partial
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, MaxNLocator

from experiments.memory_map import colors
from experiments.memory_map.labels import labels
from experiments.memory_map.raster import Raster, raster
from experiments.memory_map.slot_grid import (
    CACHED,
    INTERNAL,
    LIVE,
    PINNED,
    RESERVED,
    ROUNDING,
    device_slots,
    host_slots,
)
from experiments.paper.style import RC, new_figure
from testbed.core.request import PS
from testbed.core.slots import ceil_div
from testbed.sim.memory_trace import MemoryTrace

WIDTH_IN, HEIGHT_IN, DPI = 8.0, 4.9, 200
LEFT_IN, RIGHT_IN, TOP_IN, BOTTOM_IN, GAP_IN, HOST_IN = 0.62, 0.24, 0.3, 0.86, 0.16, 0.7
LABEL_IN = 0.13


def draw(trace: MemoryTrace, title: str) -> Figure:
    """The device pool over time, and the part of the host pool that was used, if any."""
    with mpl.rc_context(RC):
        figure = new_figure(WIDTH_IN, HEIGHT_IN)
        figure.set_layout_engine("none")
        host = num_host_slots(trace)
        bottom = BOTTOM_IN + (HOST_IN + GAP_IN if host else 0)
        device = panel(figure, bottom, HEIGHT_IN - TOP_IN - bottom)
        shown = [show(device, trace, trace.num_slots, device_slots)]
        device.set_title(title, loc="left", fontweight="bold")
        device.set_title(write_labels(device, trace), loc="right", color="#6b7280", fontsize=7)
        device.set_ylabel("Physical block")
        last = device
        if host:
            device.tick_params(labelbottom=False)
            last = panel(figure, BOTTOM_IN, HOST_IN)
            shown.append(show(last, trace, host, host_slots))
            last.set_ylabel("Host block")
        last.set_xlabel("Time (s)")
        add_legend(figure, set().union(*(r.kinds for r in shown)), any(r.shared for r in shown))
    return figure


def num_host_slots(trace: MemoryTrace) -> int:
    """Slots of the host pool up to the last one that was used."""
    used = [e.start + e.length for frame in trace.frames for held in frame.held.values() for e in held.host]
    return max(used, default=0)


def panel(figure: Figure, bottom_in: float, height_in: float) -> Axes:
    """Axes of known size, so that a pixel of a raster is a pixel of the figure."""
    width = (WIDTH_IN - LEFT_IN - RIGHT_IN) / WIDTH_IN
    return figure.add_axes((LEFT_IN / WIDTH_IN, bottom_in / HEIGHT_IN, width, height_in / HEIGHT_IN))


def show(axes: Axes, trace: MemoryTrace, num_slots: int, slots_of: Any) -> Raster:
    """The raster of a pool, with block ids on the y axis."""
    size = axes.get_position().size * axes.figure.get_size_inches() * DPI
    shown = raster(trace, num_slots, partial(slots_of, trace), round(size[0]), round(size[1]))
    extent = (trace.start_ps / PS, trace.end_ps / PS, 0, num_slots / trace.block_size)
    axes.imshow(shown.image, extent=extent, origin="lower", aspect="auto", interpolation="nearest")
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10]))
    name_blocks(axes, ceil_div(num_slots, trace.block_size), size[1] / DPI)
    return shown


def name_blocks(axes: Axes, num_blocks: int, height_in: float) -> None:
    """Block ids in the middle of their blocks where each can have one, else a scale."""
    if num_blocks * LABEL_IN <= height_in:
        axes.set_yticks(np.arange(num_blocks) + 0.5, [str(block) for block in range(num_blocks)])
        axes.tick_params(axis="y", length=0)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(min(6, round(3 * height_in)), integer=True, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda block, _: f"{block:,.0f}"))


def write_labels(axes: Axes, trace: MemoryTrace) -> str:
    """Requests, and for small pools their logical blocks, written into the raster; how to read them."""
    reading = ""
    width_in, height_in = axes.get_position().size * axes.figure.get_size_inches()
    span_ps = trace.end_ps - trace.start_ps
    min_slots = LABEL_IN * trace.num_slots / height_in
    outline = [withStroke(linewidth=1.6, foreground="white")]
    for place, start_ps, end_ps in labels(trace, min_slots, LABEL_IN * span_ps / width_in):
        if (end_ps - start_ps) / span_ps * width_in < 0.06 * len(str(place)) + 0.05:
            continue
        x = (start_ps + end_ps) / 2 / PS
        y = (place.start + place.length / 2) / trace.block_size
        axes.text(x, y, str(place), ha="center", va="center_baseline", fontsize=6.5, path_effects=outline)
        blocks = place.logical >= 0
        reading = "5\N{MIDDLE DOT}2: request 5, logical block 2" if blocks else reading or "numbers: requests"
    return reading


def add_legend(figure: Figure, kinds: set[int], shared: bool) -> None:
    """One entry for each kind that is shown."""
    entries = [(swatch(kind), name) for kind, name in colors.NAMES.items() if kind in kinds]
    if shared:
        dotted = Patch(facecolor=colors.PALETTE[0], edgecolor="white", hatch="....", linewidth=0)
        several = Patch(facecolor=colors.SEVERAL_COLOR, edgecolor="white", hatch="....", linewidth=0)
        entries.insert(1, ((dotted, several), colors.SHARED_NAME))
    handles, names = zip(*entries, strict=True)
    handler = {tuple: HandlerTuple(ndivide=None, pad=0)}
    figure.legend(
        handles, names, handler_map=handler, loc="lower center", ncols=3, columnspacing=1.6, handlelength=2.4,
        handleheight=1.1,
    )  # fmt: skip


def swatch(kind: int) -> Any:
    """What a kind looks like."""
    if kind == LIVE:
        return tuple(Patch(color=color, linewidth=0) for color in colors.PALETTE[:4])
    if kind == RESERVED:
        return tuple(Patch(color=colors.tint(colors.rgb(c), colors.TINTS[kind])) for c in colors.PALETTE[:4])
    if kind == INTERNAL:
        face = colors.tint(colors.rgb(colors.PALETTE[0]), colors.TINTS[kind])
        return Patch(facecolor=face, edgecolor=colors.LINES[kind], hatch="/////", linewidth=0)
    hatch = {ROUNDING: (colors.LINES[ROUNDING], "\\\\\\\\\\"), CACHED: ("white", "....")}.get(kind)
    if hatch:
        return Patch(facecolor=colors.PLAIN[kind], edgecolor=hatch[0], hatch=hatch[1], linewidth=0)
    edge = colors.PLAIN[kind] if kind == PINNED else "#9aa0a8"
    return Patch(facecolor=colors.PLAIN[kind], edgecolor=edge, linewidth=0.6)
