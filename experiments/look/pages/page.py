"""Self-contained HTML pages: templates that escape every value, and charts drawn as SVG."""

import base64
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape
from matplotlib.ticker import Locator, LogLocator, MaxNLocator
from numpy.typing import ArrayLike, NDArray

WIDTH, HEIGHT = 440, 270
LEFT, RIGHT, TOP, BOTTOM = 52, 430, 10, 226  # of the axes, in units of the SVG
MAX_POINTS = 400
NUM_COLORS, NUM_DASHES = 8, 4  # of the curves in page.css and plots.py
Floats = NDArray[np.float64]
NUMBER, NAME, WORDS, VERDICT = "number", "name", "words", "verdict"  # classes of columns


class Series(NamedTuple):
    """One curve, or one layer of a stack; band: the lower and upper y at each x, if any."""

    name: str
    x: ArrayLike
    y: ArrayLike
    band: Sequence[tuple[float, float]] = ()


class Chart(NamedTuple):
    """Curves over one pair of axes.

    x_label, y_label: quantity and unit. stacked: the series are layers on each other. top: the end
    of the y axis. limit: a horizontal line at this y, such as an SLO.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    stacked: bool = False
    markers: bool = False
    log_x: bool = False
    log_y: bool = False
    top: float | None = None
    limit: float | None = None

    @property
    def look(self) -> tuple[bool, tuple[str, ...]]:
        """The text of its legend; charts of one look share it."""
        return self.stacked, tuple(series.name for series in self.series)


class Axis(NamedTuple):
    """An axis of an SVG: the values `low` and `high` stand at the positions `start` and `end`."""

    low: float
    high: float
    is_log: bool
    start: float
    end: float

    def place(self, values: ArrayLike) -> Floats:
        """The positions of values; a value beyond the axis stands at its nearer end."""
        low, high, shown = self.low, self.high, np.asarray(values, float)
        if self.is_log:
            low, high, shown = np.log10(low), np.log10(high), np.log10(np.maximum(shown, self.low))
        share: Floats = np.clip((shown - low) / (high - low), 0, 1)
        return self.start + share * (self.end - self.start)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The positions and texts of round values."""
        locator: Locator = MaxNLocator(5, steps=[1, 2, 5, 10])
        if self.is_log:
            spans_decades = self.high > 100 * self.low
            locator = LogLocator(10, (1,) if spans_decades else (1, 2, 5), numticks=6)
        ticks = []
        for value in locator.tick_values(self.low, self.high):
            if self.low <= value <= self.high * 1.001:
                ticks.append((round(float(self.place(value)), 1), f"{value:,.5g}"))
        return ticks


def curve_look(number: int) -> tuple[int, int]:
    """The colour and the dashes of a curve; 32 curves differ."""
    return number % NUM_COLORS, (number + number // NUM_COLORS) % NUM_DASHES


def svg(chart: Chart) -> dict[str, Any]:
    """The values that the template of a chart needs: two axes, and a path for each series."""
    xs = [np.asarray(curve.x, float) for curve in chart.series]
    ys = [np.asarray(curve.y, float) for curve in chart.series]
    ys = list(np.cumsum(ys, axis=0)) if chart.stacked else ys
    limits = [] if chart.limit is None else [chart.limit]
    x = _axis(xs, chart.log_x, LEFT, RIGHT, zero="Time" in chart.x_label)
    edges = [np.array(curve.band, float).ravel() for curve in chart.series]
    y = _axis([*ys, *edges, np.array(limits)], chart.log_y, BOTTOM, TOP, top=chart.top)
    paths = [
        _path(x.place(curve.x), y.place(values))
        for curve, values in zip(chart.series, ys, strict=True)
    ]
    places = [
        [point.split(",") for point in path[1:].split("L")] if chart.markers and path else []
        for path in paths
    ]
    rows = list(zip([curve.name for curve in chart.series], paths, places, strict=True))
    bands = [_band(x.place(curve.x), curve.band, y) for curve in chart.series]
    limit = None if chart.limit is None else float(y.place(chart.limit))
    return {
        "chart": chart,
        "x": x,
        "y": y,
        "rows": rows,
        "bands": bands,
        "limit": limit,
        "w": WIDTH,
        "h": HEIGHT,
    }


def _axis(
    values: Sequence[Floats],
    is_log: bool,
    start: float,
    end: float,
    *,
    zero: bool = True,
    top: float | None = None,
) -> Axis:
    """An axis over all finite values; a linear one includes 0 if `zero`."""
    finite = np.concatenate([*values, np.empty(0)])
    finite = finite[np.isfinite(finite) & ((finite > 0) | (not is_log))]
    if not len(finite):
        return Axis(0, 1, False, start, end)
    low, high = float(finite.min()), top or float(finite.max())
    if zero and not is_log:
        low = min(0.0, low)
    if high <= low:
        return Axis(low, low + (abs(low) or 1), False, start, end)
    return Axis(low, high, bool(is_log), start, end)


def _path(x: Floats, y: Floats) -> str:
    """An SVG path through the points without NaN, at most MAX_POINTS of them."""
    points = np.column_stack([x, y])[~(np.isnan(x) | np.isnan(y))]
    if not len(points):
        return ""
    kept = np.unique(np.linspace(0, len(points) - 1, min(len(points), MAX_POINTS)).astype(int))
    return "M" + "L".join(f"{left:.1f},{top:.1f}" for left, top in points[kept])


def _band(x: Floats, band: Sequence[tuple[float, float]], y: Axis) -> str:
    """A closed SVG path around a band; empty without one."""
    if not band:
        return ""
    low, high = np.array(band, float).T
    upper, lower = _path(x, y.place(high)), _path(x[::-1], y.place(low)[::-1])
    return f"{upper}L{lower[1:]}Z"


class Table(NamedTuple):
    """A table that scrolls horizontally; classes, row_classes: CSS classes of columns and rows."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    classes: Sequence[str] = ()
    row_classes: Sequence[str] = ()
    look: str = ""


class Picture(NamedTuple):
    """A PNG; alt: its text alternative."""

    png: bytes
    alt: str

    @property
    def is_wide(self) -> bool:
        """True if it is wider than one column of a page; bytes 16 to 20 of a PNG are its width."""
        return int.from_bytes(self.png[16:20]) >= 1000


def whole_page(template: str = "look/pages/page.html", **values: Any) -> str:
    """A page from a template, as plain text.

    The result is a str and not Markup, whose methods escape their arguments: `html.escape` would
    escape such a page twice.
    """
    return environment().get_template(template).render(values)


def render(template: str, **values: Any) -> Markup:
    """A part of a page from a template; `whole_page` does not escape it again."""
    return Markup(whole_page(template, **values))


def json_for_script(text: str) -> Markup:
    """JSON for a page's script element, which `<` in a name could end."""
    return Markup(text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e"))


def _breakable(name: str) -> Markup:
    """The name of a key, which may go on in the next line behind a dot or an underscore."""
    return Markup(re.sub(r"(?<=\w)([._])(?=\w)", r"\1<wbr>", str(escape(name))))


@cache
def environment() -> Environment:
    """The templates below experiments."""
    templates = Environment(
        loader=PackageLoader("testbed.experiments", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["base64"] = lambda content: base64.b64encode(content).decode()
    templates.filters["svg"] = svg
    templates.filters["breakable"] = _breakable
    templates.filters["curve_look"] = lambda number: "s{} d{}".format(*curve_look(number))
    return templates
