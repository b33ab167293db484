"""How every figure looks: column width, readable type, one colour a kind of memory and a system, stable bytes."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from experiments.runs.whole_files import write_with

KIND_COLORS = {"token_states": "#4c8c4a", "reserved": "#f2c14e", "internal": "#d1495b", "external": "#c9ccd1"}
KIND_LABELS = {
    "token_states": "Token states",
    "reserved": "Reservation",
    "internal": "Internal frag.",
    "external": "External frag. & others",
}
RC = {
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
    "svg.hashsalt": "testbed",
}


def new_figure(width_in: float = 3.3, height_in: float = 2.2, kind: type[Figure] = Figure) -> Figure:
    """An empty figure of one column's width, without any global state."""
    with mpl.rc_context(RC):
        figure = kind(figsize=(width_in, height_in), layout="constrained")
        FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write the figure; the suffix says the format. The same figure gives the same bytes."""
    metadata = {"CreationDate": None} if path.suffix == ".pdf" else {"Software": None}
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
    "fastertransformer": ("FasterTransformer", "#2ca02c", "s"),
    "orca-max": ("Orca (Max)", "#d62728", "v"),
    "orca-pow2": ("Orca (Pow2)", "#e6b800", "^"),
    "orca-oracle": ("Orca (Oracle)", "#ff7f0e", "D"),
    "vllm": ("vLLM", "#1f77b4", "o"),
}
