"""Figures: published numbers next to ours, labels that can be read, one column wide."""

from itertools import combinations

import pandas as pd
import pytest
from drawings import overlapping_labels, series_of
from matplotlib import style
from matplotlib.colors import to_rgb

from testbed.experiments.cli.main import call
from testbed.experiments.look.plots import KIND_COLORS, STYLE, log_x, new_figure
from testbed.experiments.look.plots import SYSTEMS as LOOKS
from testbed.experiments.paper.figures import bars
from testbed.experiments.paper.reproduction import load
from testbed.experiments.paper.scorecard import published
from testbed.experiments.paper.studies.averages import sizes
from testbed.experiments.runs.run_store import RunStore

SYSTEMS = ("orca-max", "orca-pow2", "orca-oracle", "vllm")


@pytest.fixture
def drawn(tmp_path):
    def draw(name, rows):
        pd.DataFrame(rows).to_csv(tmp_path / "table.csv")
        return load(name).draw(tmp_path / "table.csv")

    return draw


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


@pytest.mark.parametrize(
    ("low", "high"), [(0.02, 0.03), (0.02, 0.15), (0.02, 0.5), (0.001, 5), (1e-6, 1e9), (0, 3)]
)
def test_latency_axis_labels_never_overlap(low, high):
    with style.context(STYLE):
        figure = new_figure()
        panels = figure.subplots(1, 2)
        for axes in panels:
            axes.plot([low, high], [0, 100])
            log_x(axes, low, high)
    assert not overlapping_labels(figure)
    assert panels[0].get_xscale() == ("log" if low and high >= 10 * low else "linear")


def test_figure_2_shows_published_and_simulated_shares(drawn, snapshot):
    kinds = {"token_states": 40.06, "reservation": 33.88, "internal_fragmentation": 20.06}
    kinds |= {"external_fragmentation_and_others": bars.SMALLEST_LABEL, "all_waste": 59.94}
    rows = [
        {"system": s, "quantity": kind, "simulated": v}
        for s in SYSTEMS
        for kind, v in kinds.items()
    ]
    figure = drawn("fig2", rows)
    shown = texts(figure)
    for value in published("fig2")["published"]:
        assert value < bars.SMALLEST_LABEL or f"{value:.1f}" in shown
    assert shown.count("40.1") == len(SYSTEMS)
    tops = {round(bar.get_y() + bar.get_height(), 1) for bar in figure.axes[0].patches}
    assert max(tops) == pytest.approx(100, abs=0.2)
    assert series_of(figure) == snapshot
    assert not overlapping_labels(figure)


@pytest.mark.parametrize("name", ["fig12", "fig14", "fig17"])
def test_figures_of_rates_have_the_paper_s_rows_and_columns(drawn, name, snapshot):
    rows = [
        {
            "setting": s,
            "system": system,
            "quantity": "normalized_latency",
            "seed": 0,
            "rate": rate,
            "simulated": y,
        }
        for s in load(name).looks["titles"]
        for system in SYSTEMS
        for rate, y in ((0.1, 0.05), (1.13, 1.0 if system == "vllm" else 0.3), (2.37, 1.5))
    ]
    figure = drawn(name, rows)
    assert not overlapping_labels(figure)
    assert series_of(figure) == snapshot


def luminance(color):
    red, green, blue = (
        v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in to_rgb(color)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(
    "colors", [list(KIND_COLORS.values()), [color for _, color, _ in LOOKS.values()]]
)
def test_colours_differ_in_lightness_or_as_blue_from_orange(colors):
    """Without red or green, colours differ by lightness, and blue from yellow."""
    for color, other in combinations(colors, 2):
        ratio = (luminance(color) + 0.05) / (luminance(other) + 0.05)
        blue = [to_rgb(color)[2] - to_rgb(color)[0] for color in (color, other)]
        assert max(ratio, 1 / ratio) > 1.25 or abs(blue[0] - blue[1]) > 0.5, (color, other)


@pytest.mark.parametrize("suffix", ["pdf", "png", "svg"])
def test_a_figure_is_drawn_again_from_its_table(tmp_path, capsys, suffix):
    rows = [
        row
        for model in ("opt-13b", "opt-66b", "opt-175b")
        for row in sizes(RunStore(tmp_path), model)
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "table1.csv", index=False)
    drawn = [tmp_path / f"{name}.{suffix}" for name in ("one", "two")]
    for path in drawn:
        call("plot", ["table1", str(tmp_path), "--out", str(path), "--size", "5x2"])
    assert drawn[0].read_bytes() == drawn[1].read_bytes()
    assert str(drawn[1]) in capsys.readouterr().out
