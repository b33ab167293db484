"""How figures look: published numbers beside ours, labels that can be read, one column wide."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from overlaps import overlapping_labels

from experiments.paper.figures import fig02_memory_waste, fig12_basic_sampling, fig13_batched_requests
from experiments.paper.figures.published import published, published_range
from experiments.paper.style import RC, log_x, new_figure
from experiments.runs import plots

SYSTEMS = ("orca-max", "orca-pow2", "orca-oracle", "vllm")


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_overlapping_labels_are_found():
    figure = new_figure()
    axes = figure.subplots()
    axes.plot([1, 100], [1, 2])
    assert not overlapping_labels(figure)
    axes.set_xticks([1, 1.1, 50], ["a long label", "another", "alone"])
    assert overlapping_labels(figure) == [("a long label", "another")]


@pytest.mark.parametrize(("low", "high"), [(0.02, 0.03), (0.02, 0.15), (0.02, 0.5), (0.001, 5), (1e-6, 1e9), (0, 3)])
def test_labels_of_latencies_never_overlap(low, high):
    with mpl.rc_context(RC):
        figure = new_figure()
        panels = figure.subplots(1, 2)
        for axes in panels:
            axes.plot([low, high], [0, 100])
            log_x(axes, low, high)
    assert not overlapping_labels(figure)
    assert panels[0].get_xscale() == ("log" if low and high >= 10 * low else "linear")


@pytest.mark.parametrize("factor", [1.5, 40, 3000])
def test_the_latency_plot_of_a_run_can_be_read(factor):
    finish = 10 * np.geomspace(0.02, 0.02 * factor, 50)
    requests = pd.DataFrame({"arrival_s": 0.0, "finish_s": finish, "e2e_s": finish, "output_len": 10})
    with mpl.rc_context(RC):
        assert not overlapping_labels(plots.draw_latency(requests))


def test_figure_2_has_the_published_shares_beside_ours():
    kinds = {"token_states": 40.06, "reservation": 30.06, "internal_fragmentation": 20.06}
    kinds |= {"external_fragmentation_and_others": 9.82, "all_waste": 59.94}
    rows = [{"system": s, "quantity": kind, "simulated": v} for s in SYSTEMS for kind, v in kinds.items()]
    figure = fig02_memory_waste.draw(pd.DataFrame(rows))
    shown = texts(figure)
    for value in published("fig2")["published"]:
        assert value < fig02_memory_waste.SMALLEST_LABEL or f"{value:.1f}" in shown
    assert shown.count("40.1") == len(SYSTEMS)
    tops = {round(bar.get_y() + bar.get_height(), 1) for bar in figure.axes[0].patches}
    assert max(tops) == pytest.approx(100, abs=0.2)
    assert figure.get_figwidth() == 3.3
    assert not overlapping_labels(figure)


def test_figure_13_has_the_published_bars_beside_ours():
    rows = [
        {"setting": s, "system": system, "simulated": 5.55} for s in fig13_batched_requests.PANELS for system in SYSTEMS
    ]
    figure = fig13_batched_requests.draw(pd.DataFrame(rows))
    heights = [bar.get_height() for bar in figure.axes[1].patches]
    assert heights == [7.0, 43.24, 72.75, 132.44] + [5.55] * 4
    assert not overlapping_labels(figure)


def test_figure_12_is_one_column_wide():
    rows = [
        {
            "setting": setting,
            "system": system,
            "quantity": "normalized_latency",
            "seed": 0,
            "rate": rate,
            "simulated": y,
        }
        for setting in fig12_basic_sampling.TITLES
        for system in SYSTEMS
        for rate, y in ((0.1, 0.05), (1.13, 0.3), (2.37, 1.2))
    ]
    figure = fig12_basic_sampling.draw(pd.DataFrame(rows))
    assert figure.get_figwidth() == 3.3
    assert not overlapping_labels(figure)


def test_a_published_range_is_read_from_the_reference():
    assert published_range("fig18a", "kernel_overhead") == (20, 26)
