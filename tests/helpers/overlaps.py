"""Tick labels of a figure that lie over each other, or outside the figure."""

from itertools import combinations


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
