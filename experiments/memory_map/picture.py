"""A run as a memory map: simulates the run again with a traced policy, and draws physical slots over time."""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from testbed.build import build
from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.core.slots import ceil_div
from testbed.experiments.memory_map import raster
from testbed.experiments.memory_map.encode import page
from testbed.experiments.runs.figure_style import RC, new_figure, save
from testbed.experiments.runs.run_folder import changed_since
from testbed.experiments.runs.whole_files import write_text
from testbed.sim.memory_trace import Frame, MemoryTrace, trace_memory

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
        shown = [show(device, trace, trace.num_slots, raster.device_slots)]
        device.set_title(title, loc="left", fontweight="bold")
        device.set_title(write_labels(device, trace), loc="right", color="#6b7280", fontsize=7)
        device.set_ylabel("Physical block")
        last = device
        if host:
            device.tick_params(labelbottom=False)
            last = panel(figure, BOTTOM_IN, HOST_IN)
            shown.append(show(last, trace, host, raster.host_slots))
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


def show(axes: Axes, trace: MemoryTrace, num_slots: int, slots_of: Any) -> raster.Raster:
    """The raster of a pool, with block ids on the y axis."""
    size = size_in(axes) * DPI
    shown = raster.raster(trace, num_slots, partial(slots_of, trace), round(size[0]), round(size[1]))
    extent = (trace.start_ps / PS, trace.end_ps / PS, 0, num_slots / trace.block_size)
    axes.imshow(shown.image, extent=extent, origin="lower", aspect="auto", interpolation="nearest")
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10]))
    name_blocks(axes, ceil_div(num_slots, trace.block_size), size[1] / DPI)
    return shown


def name_blocks(axes: Axes, num_blocks: int, height_in: float) -> None:
    """Label each block with its id where the labels fit, else draw a scale."""
    if num_blocks * LABEL_IN <= height_in:
        axes.set_yticks(np.arange(num_blocks) + 0.5, [str(block) for block in range(num_blocks)])
        axes.tick_params(axis="y", length=0)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(min(6, round(3 * height_in)), integer=True, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda block, _: f"{block:,.0f}"))


def write_labels(axes: Axes, trace: MemoryTrace) -> str:
    """Write requests, and for small pools their logical blocks, into the raster; returns a legend of the labels."""
    reading = ""
    width_in, height_in = size_in(axes)
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


class Place(NamedTuple):
    """A request's extent; `logical` is its first logical block, -1 where the extent is the whole table."""

    request_id: int
    logical: int
    start: int
    length: int

    def __str__(self) -> str:
        return str(self.request_id) if self.logical < 0 else f"{self.request_id}\N{MIDDLE DOT}{self.logical}"


def labels(trace: MemoryTrace, min_slots: float, min_ps: float) -> Iterator[tuple[Place, int, int]]:
    """(place, start, end) of every place that is large and unchanged long enough for a label, in order of its end."""
    since: dict[Place, int] = {}
    seen = ((frame.start_ps, places(frame, trace.block_size, min_slots)) for frame in trace.frames)
    for now_ps, found in chain(seen, [(trace.end_ps, ())]):
        now = dict.fromkeys(found)
        for place in [place for place in since if place not in now]:
            start_ps = since.pop(place)
            if now_ps - start_ps >= min_ps:
                yield place, start_ps, now_ps
        for place in now:
            since.setdefault(place, now_ps)


def places(frame: Frame, block_size: int, min_slots: float) -> Iterator[Place]:
    """The large extents of a frame; a block that sequences of a request share is yielded for each."""
    for held in frame.held.values():
        position = 0
        for start, length in held.device:
            if length >= min_slots:
                logical = -1 if len(held.device) == 1 and length > block_size else ceil_div(position, block_size)
                yield Place(held.request_id, logical, start, length)
            position += length


def add_legend(figure: Figure, kinds: set[int], shared: bool) -> None:
    """Add one entry per kind of slot in the picture."""
    entries = [(swatch(kind), name) for kind, name in raster.NAMES.items() if kind in kinds]
    if shared:
        dotted = Patch(facecolor=raster.PALETTE[0], edgecolor="white", hatch="....", linewidth=0)
        several = Patch(facecolor=raster.SEVERAL_COLOR, edgecolor="white", hatch="....", linewidth=0)
        entries.insert(1, ((dotted, several), raster.SHARED_NAME))
    handles, names = zip(*entries, strict=True)
    handler = {tuple: HandlerTuple(ndivide=None, pad=0)}
    figure.legend(
        handles, names, handler_map=handler, loc="lower center", ncols=3, columnspacing=1.6, handlelength=2.4,
        handleheight=1.1,
    )  # fmt: skip


def tinted(color: str, kind: int) -> tuple[float, float, float]:
    """A request's colour in the tint of a kind of slot."""
    red, green, blue = raster.tint(raster.rgb(color), raster.TINTS[kind]).tolist()
    return red, green, blue


def size_in(axes: Axes) -> NDArray[np.float64]:
    """Width and height in inches."""
    return np.array([WIDTH_IN, HEIGHT_IN]) * axes.get_position().size


def swatch(kind: int) -> Any:
    """The legend patch of a kind."""
    if kind == raster.LIVE:
        return tuple(Patch(color=color, linewidth=0) for color in raster.PALETTE[:4])
    if kind == raster.RESERVED:
        return tuple(Patch(color=tinted(color, kind)) for color in raster.PALETTE[:4])
    if kind == raster.INTERNAL:
        face = tinted(raster.PALETTE[0], kind)
        return Patch(facecolor=face, edgecolor=raster.LINES[kind], hatch="/////", linewidth=0)
    hatch = {raster.ROUNDING: (raster.LINES[raster.ROUNDING], "\\\\\\\\\\"), raster.CACHED: ("white", "....")}.get(kind)
    if hatch:
        return Patch(facecolor=raster.PLAIN[kind], edgecolor=hatch[0], hatch=hatch[1], linewidth=0)
    edge = raster.PLAIN[kind] if kind == raster.PINNED else "#9aa0a8"
    return Patch(facecolor=raster.PLAIN[kind], edgecolor=edge, linewidth=0.6)


def retrace(config: RunConfig, start_s: float, stop_s: float | None) -> MemoryTrace:
    """The memory trace of a config's run from start_s to stop_s, or to the run's end."""
    setup = build(config)
    start_ps, _, end_ps = setup.part_ps(start_s, stop_s)
    trace = trace_memory(
        setup.workload, setup.scheduler, setup.cost, setup.model.max_len,
        start_ps=start_ps, stop_ps=end_ps, fast_forward=setup.config.fast_forward, beams=setup.beams,
    )  # fmt: skip
    if not trace.frames:
        raise InputError(f"--from {start_s:g}: the run ends at {trace.end_ps / PS:g} s, there is nothing to draw")
    return trace


def title_of(trace: MemoryTrace, config: RunConfig) -> str:
    """The policy, the model and the size of the pool."""
    policy, blocks = config.policy.name.rpartition(".")[2], trace.num_slots // trace.block_size
    return f"{policy}, {config.model.name}: {blocks:,} blocks of {trace.block_size} slots"


def write(trace: MemoryTrace, config: RunConfig, stem: Path) -> list[Path]:
    """Write the pictures and the page; returns their paths."""
    title = title_of(trace, config)
    figure = draw(trace, title)
    paths = [stem.with_suffix(suffix) for suffix in (".png", ".pdf", ".html")]
    for path in paths[:2]:
        save(figure, path)
    write_text(paths[2], page(trace, title))
    return paths


def remarks(trace: MemoryTrace, summary: dict[str, Any] | None) -> Iterator[str]:
    """Remarks for the reader of the picture; `summary` is the folder's."""
    if trace.num_states > len(trace.frames):
        yield f"{len(trace.frames):,} of {trace.num_states:,} states are drawn; --from and --to zoom in"
    yield from changed_since(summary, trace.end_ps / PS, "picture")
