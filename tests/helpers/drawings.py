"""Texts compared with what is kept, also of what a figure shows; tick labels that overlap or lie outside."""

from itertools import combinations
from pathlib import Path

from matplotlib.colors import to_hex
from matplotlib.figure import Figure

GOLDEN = Path(__file__).parents[1] / "golden"


def check_text(text, request, folder="texts"):
    """The text is that of tests/golden/FOLDER/TEST.txt; --update-golden writes the file."""
    path = GOLDEN / folder / f"{request.node.name.removeprefix('test_')}.txt"
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path.name}: a deliberate change is pytest --update-golden"


def check_drawing(figure, findings, request, table=None):
    """The figure, its findings and its table, without the names of runs, are those that are kept."""
    lines = [*described(figure), *(told(finding) for finding in findings)]
    if table is not None:
        lines.append(table.drop(columns="run", errors="ignore").to_csv(index=False, float_format="%.6g"))
    check_text("\n".join([*lines, ""]), request, "drawings")


def saved_figures(monkeypatch):
    """The figures that are saved from now on."""
    found, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *to, **how: found.append(self) or save(self, *to, **how))
    return found


def described(figure):
    """A line for each thing that is drawn; numbers have four digits."""
    yield f"figure {numbers(figure.get_size_inches())}"
    for axes in figure.axes:
        x, y = ((axis.get_label_text(), axis.get_scale()) for axis in (axes.xaxis, axes.yaxis))
        yield f"axes {axes.get_title()!r}, x {x}, y {y}"
        yield f"  place {axes.get_subplotspec()}, y {numbers(axes.get_ylim())}"
        for line in axes.lines:
            style = f"{to_hex(line.get_color())} {line.get_linestyle()} {line.get_marker()} {line.get_linewidth():.4g}"
            yield f"  line {line.get_label()!r} {style}: {numbers(line.get_xdata())} / {numbers(line.get_ydata())}"
        for bar in axes.patches:
            yield f"  bar {numbers(bar.get_bbox().bounds)} {to_hex(bar.get_facecolor())} {bar.get_hatch()}"
        yield from (f"  text {text.get_text()!r}" for text in axes.texts)
        yield from (f"  points {numbers(one.get_offsets().ravel())}" for one in axes.collections)
    for legend in [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]:
        yield f"legend {[text.get_text() for text in legend.get_texts()]}"


def told(finding):
    """A finding's fields, numbers with four digits."""
    return " | ".join(numbers(one) if isinstance(one, tuple | float) else str(one) for one in finding)


def numbers(values):
    """Four digits of each."""
    return " ".join(f"{value:.4g}" if isinstance(value, float) else str(value)
                    for value in (values if hasattr(values, "__iter__") else [values]))  # fmt: skip


def overlapping_labels(figure):
    """Pairs of tick labels of one axis whose boxes overlap, and labels that reach over the figure's edge."""
    figure.draw_without_rendering()
    edge = figure.bbox.padded(1)
    found = []
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            labels = [tick.label1 for tick in ticks if tick.label1.get_text() and tick.label1.get_visible()]
            boxes = [(label.get_text(), label.get_window_extent()) for label in labels]
            found += [(a, b) for (a, box), (b, other) in combinations(boxes, 2) if box.overlaps(other)]
            found += [(a, "the edge") for a, box in boxes if not (edge.x0 <= box.x0 and box.x1 <= edge.x1)]
    return found
