"""What a figure shows, compared with what is kept; tick labels that overlap or lie outside."""

from itertools import combinations

from kept import check_text
from matplotlib.colors import to_hex
from matplotlib.figure import Figure


def check_drawing(figure, findings, request, table=None):
    """The figure, its findings and its table, without the names of runs, are those that are
    kept.
    """
    lines = [*described(figure), *(told(finding) for finding in findings)]
    if table is not None:
        lines.append(
            table.drop(columns="run", errors="ignore").to_csv(index=False, float_format="%.6g")
        )
    check_text("\n".join([*lines, ""]), request, "drawings")


def saved_figures(monkeypatch):
    """The figures that are saved from now on."""
    found, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *to, **how: found.append(self) or save(self, *to, **how)
    )
    return found


def described(figure):
    """A line for each thing that is drawn, as it looks; numbers have four digits."""
    figure.draw_without_rendering()
    yield f"figure {numbers(figure.get_size_inches())} {looks(figure._supylabel)}"
    for axes in figure.axes:
        yield f"axes {looks(axes.title)}, {axes.get_subplotspec()}, on {axes.axison}"
        for axis in (axes.xaxis, axes.yaxis):
            low, high = axis.get_view_interval()
            yield (
                f"  {axis.axis_name} {looks(axis.label)} {axis.get_scale()} from {low:.4g} to "
                f"{high:.4g}"
            )
            for ticks in (axis.get_major_ticks(), axis.get_minor_ticks()):
                shown = [tick for tick in ticks if low <= tick.get_loc() <= high]
                lines = [
                    tick.tick1line.get_visible() and tick.tick1line.get_markersize()
                    for tick in shown
                ]
                ticks = zip(shown, lines, strict=True)
                yield f"    ticks {[(looks(tick.label1), size) for tick, size in ticks]}"
            yield f"    {looks(axis.get_offset_text())}"
        for line in axes.lines:
            style = (
                f"{to_hex(line.get_color())} {line.get_linestyle()} {line.get_linewidth():.4g} "
                f"{line.get_marker()}"
            )
            points = f"{numbers(line.get_xdata())} / {numbers(line.get_ydata())}"
            yield f"  line {line.get_label()!r} {style} {line.get_markersize():.4g}: {points}"
        for bar in axes.patches:
            edge = f"{to_hex(bar.get_edgecolor())} {bar.get_linewidth():.4g} {bar.get_hatch()}"
            yield (
                f"  bar {numbers(bar.get_bbox().bounds)} {to_hex(bar.get_facecolor(), True)} {edge}"
            )
        for text in axes.texts:
            box = text.get_bbox_patch()
            at = f"{numbers(text.get_position())} of {numbers(getattr(text, 'xy', ()))}"
            yield (
                f"  {looks(text)} at {at} "
                f"{box and (to_hex(box.get_facecolor(), True), box.get_linewidth())}"
            )
        for table in axes.tables:
            yield from (
                f"  {looks(cell.get_text())} {cell.get_height():.4g} {cell.get_linewidth()}"
                for cell in table.get_celld().values()
            )
        yield from (f"  points {numbers(one.get_offsets().ravel())}" for one in axes.collections)
        yield from map(legend_looks, filter(None, [axes.get_legend()]))
    yield from map(legend_looks, figure.legends)


def legend_looks(legend):
    """Its texts, lines and place."""
    where = (
        f"{legend._outside_loc or legend._loc} {legend._ncols} {legend.handlelength} "
        f"{legend.columnspacing}"
    )
    where += " in a frame" if legend.get_frame_on() else ""
    handles = [handle.get_linestyle() for handle in legend.get_lines()]
    return (
        f"  legend {legend.get_title().get_text()!r} {[*map(looks, legend.get_texts())]} "
        f"{handles} {where}"
    )


def looks(text):
    """A text, its size, its place and how it is put there; nothing where there is none."""
    if text is None or not text.get_text() or not text.get_visible():
        return ""
    put = f"{text.get_ha()} {text.get_va()} {text.get_rotation():g} {to_hex(text.get_color())}"
    return f"{text.get_text()!r} {text.get_fontsize():g} {put}"


def told(finding):
    """A finding's fields, numbers with four digits."""
    return " | ".join(
        numbers(one) if isinstance(one, tuple | float) else str(one) for one in finding
    )


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
    found = []
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
            found += [
                (a, b) for (a, box), (b, other) in combinations(boxes, 2) if box.overlaps(other)
            ]
            found += [
                (a, "the edge") for a, box in boxes if not (edge.x0 <= box.x0 and box.x1 <= edge.x1)
            ]
    return found
