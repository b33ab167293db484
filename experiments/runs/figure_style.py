"""The style of all figures: column width, font sizes, one colour per kind of memory and per system, stable bytes."""

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from testbed.experiments.runs.whole_files import write_with

# Blue, orange and grey of unlike lightness, which colour-blind readers distinguish; kinds without tokens are hatched.
KIND_COLORS = {"token_states": "#2f78b7", "reserved": "#ffd9a8", "internal": "#f28e2b", "external": "#b4b8bf"}
KIND_HATCHES = {"token_states": "", "reserved": "////", "internal": "\\\\\\\\", "external": "...."}
HATCH_COLOR = "#55585e"
KIND_LABELS = {
    "token_states": "Token states",
    "reserved": "Reservation",
    "internal": "Internal frag.",
    "external": "External frag. & others",
}
RC: dict[Any, Any] = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "figure.dpi": 200,
    "pdf.fonttype": 42,
    "hatch.linewidth": 0.5,
    "svg.hashsalt": "testbed",
}


class Shown(Figure):
    """A figure that a notebook displays."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        with mpl.rc_context(RC):
            self.savefig(content, format="png", dpi=150)
        return content.getvalue()


def new_figure(width_in: float = 3.3, height_in: float = 2.2) -> Figure:
    """An empty figure of one column's width, without any global state."""
    with mpl.rc_context(RC):
        figure = Shown(figsize=(width_in, height_in), layout="constrained")
        FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the suffix. Equal figures give equal bytes."""
    metadata = {{".pdf": "CreationDate", ".svg": "Date"}.get(path.suffix, "Software"): None}
    with mpl.rc_context(RC):
        write_with(path, lambda temporary: figure.savefig(temporary, metadata=metadata, dpi=200))


def log_x(axes: Axes, low: float, high: float) -> None:
    """A logarithmic x axis for values of more than a decade, with labels that cannot overlap; else a linear one."""
    if not 0 < 10 * low <= high:
        return
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(10, (1,) if high > 100 * low else (1, 3), numticks=4))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


SYSTEMS = {
    "fastertransformer": ("FasterTransformer", "#8a8f98", "s"),
    "orca-max": ("Orca (Max)", "#8c3b00", "v"),
    "orca-pow2": ("Orca (Pow2)", "#f0b860", "^"),
    "orca-oracle": ("Orca (Oracle)", "#f07f1a", "D"),
    "vllm": ("vLLM", "#2f78b7", "o"),
}
