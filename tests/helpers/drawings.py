"""The data of a figure's series as a text that a person can compare; tick labels that overlap."""

from itertools import combinations

from matplotlib.figure import Figure


def saved_figures(monkeypatch):
    """The figures that are saved from now on."""
    drawn, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *to, **how: drawn.append(self) or save(self, *to, **how)
    )
    return drawn


def series_of(figure):
    """A paragraph for each panel that shows data: its title, its axes, and a line for each series
    and each cell of a table. Numbers have four digits; nothing is said of how it looks.
    """
    paragraphs = [lines for lines in map(panel_lines, figure.axes) if len(lines) > 1]
    return "\n\n".join("\n".join(lines) for lines in paragraphs)


def panel_lines(axes):
    """The title of a panel, and its series."""
    title = axes.get_title().replace("\n", " ")
    x_label, y_label = (text.replace("\n", " ") for text in (axes.get_xlabel(), axes.get_ylabel()))
    lines = [f"[{title}] {y_label} by {x_label}"]
    for line in axes.lines:
        lines.append(f"{line.get_label()}: {points(line.get_xdata(), line.get_ydata())}")
    for bars in axes.containers:
        corners = [bar.get_xy() for bar in bars.patches]
        heights = numbers([float(bar.get_height()) for bar in bars.patches])
        lines.append(f"{bars.get_label()}: {heights} from {numbers([y for _, y in corners])}")
    for table in axes.tables:
        cells = [cell.get_text().get_text() for cell in table.get_celld().values()]
        lines.append(" | ".join(cells))
    return lines


def points(xs, ys):
    """The points of a line, as x:y."""
    return " ".join(f"{numbers([x])}:{numbers([y])}" for x, y in zip(xs, ys, strict=True))


def numbers_of(finding):
    """A finding's place, its number or numbers, and its margin."""
    simulated = finding.simulated
    shown = numbers(simulated) if isinstance(simulated, tuple | float) else str(simulated)
    margin = "" if finding.margin is None else f" (margin {finding.margin:.4g})"
    place = ", ".join(part for part in finding[:4] if part)
    return f"{place}: {shown}{margin}"


def numbers(values):
    """Four digits of each."""
    return " ".join(
        f"{value:.4g}" if isinstance(value, float) else str(value)
        for value in (values if hasattr(values, "__iter__") else [values])
    )


def overlapping_labels(figure):
    """Pairs of tick labels of one axis whose boxes overlap, and labels that reach over the figure's
    edge.
    """
    figure.draw_without_rendering()
    edge = figure.bbox.padded(1)
    lines = []
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            labels = [
                tick.label1
                for tick in ticks
                if tick.label1.get_text() and tick.label1.get_visible()
            ]
            boxes = [(label.get_text(), label.get_window_extent()) for label in labels]
            lines += [
                (a, b) for (a, box), (b, other) in combinations(boxes, 2) if box.overlaps(other)
            ]
            lines += [
                (a, "the edge") for a, box in boxes if not (edge.x0 <= box.x0 and box.x1 <= edge.x1)
            ]
    return lines
