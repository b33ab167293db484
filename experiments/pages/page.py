"""Self-contained HTML pages from templates, which escape every value, and charts as data, which a
page shows as SVG.
"""

import base64
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from matplotlib.ticker import LogLocator, MaxNLocator
from numpy.typing import ArrayLike, NDArray

WIDTH, HEIGHT = 440, 270
LEFT, RIGHT, TOP, BOTTOM = 52, 430, 10, 226  # of the axes, in units of the SVG
MAX_POINTS = 400
Floats = NDArray[np.float64]
NUMBER, VERDICT = "number", "verdict"  # classes of columns


class Series(NamedTuple):
    """One curve, or one layer of a stack."""

    name: str
    x: ArrayLike
    y: ArrayLike


class Chart(NamedTuple):
    """Curves over one pair of axes, whose labels name quantity and unit; `limit`: a line at that y,
    as of an SLO.
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


class Axis(NamedTuple):
    """The values at two positions of an SVG, and the labelled positions between them."""

    low: float
    high: float
    is_log: bool
    start: float
    end: float

    def place(self, values: ArrayLike) -> Floats:
        """Positions of values; beyond the axis, its ends."""
        low, high, given = self.low, self.high, np.asarray(values, float)
        if self.is_log:
            low, high, given = np.log10(low), np.log10(high), np.log10(np.maximum(given, self.low))
        share: Floats = np.clip((given - low) / (high - low), 0, 1)
        return self.start + share * (self.end - self.start)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Positions and texts of round values."""
        parts = (1,) if self.high > 100 * self.low else (1, 2, 5)
        locator = (
            LogLocator(10, parts, numticks=6)
            if self.is_log
            else MaxNLocator(5, steps=[1, 2, 5, 10])
        )
        values = [
            value
            for value in locator.tick_values(self.low, self.high)
            if self.low <= value <= self.high * 1.001
        ]
        return [(round(float(self.place(value)), 1), f"{value:,.5g}") for value in values]


def svg(chart: Chart) -> dict[str, Any]:
    """What the template needs: two axes, a path for each series, and whether log axes and stacks
    are read back.
    """
    xs = [np.asarray(curve.x, float) for curve in chart.series]
    ys = [np.asarray(curve.y, float) for curve in chart.series]
    ys = list(np.cumsum(ys, axis=0)) if chart.stacked else ys
    limits = [] if chart.limit is None else [chart.limit]
    x = _axis(xs, chart.log_x, LEFT, RIGHT, zero="Time" in chart.x_label)
    y = _axis([*ys, np.array(limits)], chart.log_y, BOTTOM, TOP, top=chart.top)
    paths = [
        _path(x.place(curve.x), y.place(values))
        for curve, values in zip(chart.series, ys, strict=True)
    ]
    places = [
        [point.split(",") for point in path[1:].split("L")] if chart.markers and path else []
        for path in paths
    ]
    rows = list(zip([curve.name for curve in chart.series], paths, places, strict=True))
    limit = None if chart.limit is None else float(y.place(chart.limit))
    return {"chart": chart, "x": x, "y": y, "rows": rows, "limit": limit, "w": WIDTH, "h": HEIGHT}


def _axis(
    values: Sequence[Floats],
    is_log: bool,
    start: float,
    end: float,
    *,
    zero: bool = True,
    top: float | None = None,
) -> Axis:
    """An axis over all finite values; a linear one begins at 0."""
    finite = np.concatenate([*values, np.empty(0)])
    finite = finite[np.isfinite(finite) & ((finite > 0) | (not is_log))]
    if not len(finite):
        return Axis(0, 1, False, start, end)
    low = float(finite.min()) if is_log or not zero else min(0.0, float(finite.min()))
    high = top or float(finite.max())
    return Axis(
        low, high if high > low else low + (abs(low) or 1), bool(is_log and high > low), start, end
    )


def _path(x: Floats, y: Floats) -> str:
    """The points with both numbers as an SVG path, at most MAX_POINTS of them."""
    points = np.column_stack([x, y])[~(np.isnan(x) | np.isnan(y))]
    kept = np.unique(np.linspace(0, len(points) - 1, min(len(points), MAX_POINTS)).astype(int))
    return "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in points[kept]) if len(points) else ""


class Table(NamedTuple):
    """A table that scrolls horizontally. classes: of each column, such as "number"; row_classes: of
    each row; look.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    classes: Sequence[str] = ()
    row_classes: Sequence[str] = ()
    look: str = ""


class Picture(NamedTuple):
    """A picture of one page column's width. alt: its text alternative."""

    png: bytes
    alt: str

    @property
    def is_wide(self) -> bool:
        """Whether it was drawn for more than one column: it has 1,000 pixels a row."""
        return int.from_bytes(self.png[16:20]) >= 1000


def whole_page(template: str = "pages/page.html", **values: Any) -> str:
    """A page from a template, as plain text.

    It is no Markup, because the methods of Markup escape their arguments: `html.escape` would
    escape a page of that class twice.
    """
    return environment().get_template(template).render(values)


def render(template: str, **values: Any) -> Markup:
    """A part of a page from a template, which `whole_page` takes unchanged."""
    return Markup(whole_page(template, **values))


def json_for_script(text: str) -> Markup:
    """JSON to stand in a page's script element, where `<` in a name could end the element."""
    return Markup(text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e"))


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
    return templates
