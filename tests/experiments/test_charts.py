"""Charts as data, as SVG and as figures: axes, ticks, points, stacks; charts of a run and of a
sweep.
"""

import re
from io import StringIO

import numpy as np
import pandas as pd
import pytest

from testbed.experiments.look.pages.page import Chart, Series, environment, svg
from testbed.experiments.look.plots import figure_of
from testbed.experiments.look.run_charts import cdf_chart, over_time, run_charts
from testbed.experiments.runs.sweep_table import sweep_charts

LEFT, RIGHT, BOTTOM, TOP = 52, 430, 226, 10  # of a page's chart, in pixels


def labels(axis):
    return [label for _, label in axis.ticks]


def test_svg_maps_values_to_pixels_between_the_lowest_and_the_highest():
    chart = Chart(
        "",
        "Rate (req/s)",
        "Time (s)",
        [
            Series("a", [1, 2, 4.5], [0.2, 0.7, float("nan")]),
            Series("b", [1.5, 3, 7], [0.4, 12, 3.3]),
        ],
        markers=True,
        limit=9.5,
    )
    drawn = svg(chart)
    horizontal, vertical = drawn["x"], drawn["y"]
    assert (horizontal.low, horizontal.high, horizontal.is_log) == (1, 7, False)
    assert (vertical.low, vertical.high, vertical.is_log) == (0, 12, False)
    assert (horizontal.start, horizontal.end, vertical.start, vertical.end) == (52, 430, 226, 10)
    assert labels(horizontal) == ["2", "4", "6"]
    assert labels(vertical) == ["0", "5", "10"]
    names = [name for name, _, _ in drawn["rows"]]
    points = {name: np.array(marks, float) for name, _, marks in drawn["rows"]}
    assert names == ["a", "b"]
    assert len(points["a"]) == 2  # a point that is nan is not drawn
    expected = [
        (LEFT + (x - 1) / 6 * (RIGHT - LEFT), BOTTOM + y / 12 * (TOP - BOTTOM))
        for x, y in [(1.5, 0.4), (3, 12), (7, 3.3)]
    ]
    assert points["b"] == pytest.approx(np.array(expected), abs=0.06)
    assert drawn["limit"] == pytest.approx(BOTTOM + 9.5 / 12 * (TOP - BOTTOM))


def test_logarithmic_axes_have_a_tick_for_each_power_of_ten():
    chart = Chart(
        "", "x", "y", [Series("a", [0.1, 0.5, 30], [0.02, 0.3, 7])], log_x=True, log_y=True, limit=5
    )
    drawn = svg(chart)
    assert drawn["x"].is_log
    assert drawn["y"].is_log
    assert labels(drawn["x"]) == ["0.1", "1", "10"]
    assert labels(drawn["y"]) == ["0.1", "1"]
    decade = (RIGHT - LEFT) / np.log10(300)
    assert [place for place, _ in drawn["x"].ticks] == pytest.approx(
        [LEFT, LEFT + decade, LEFT + 2 * decade], abs=0.06
    )


@pytest.mark.parametrize(
    ("high", "ticks"),
    [(100, ["1", "2", "5", "10", "20", "50", "100"]), (101.5, ["1", "10", "100"])],
)
def test_up_to_two_decades_have_ticks_between_the_powers(high, ticks):
    chart = Chart("", "x", "y", [Series("a", [1, high], [0, 1])], log_x=True)
    assert labels(svg(chart)["x"]) == ticks


def test_as_many_as_32_curves_of_a_page_and_a_figure_look_different():
    names = [f"curve {number}" for number in range(32)]
    chart = Chart("", "x", "y", [Series(name, [1, 2], [0, 1]) for name in names])
    page = environment().get_template("look/pages/parts.html").module.chart(chart)
    looks = dict(re.findall(r'<path class="([^"]*)" data-name="([^"]*)"', page))
    assert list(looks.values()) == names
    legend = re.findall(r'<li>.*?<path class="([^"]*)".*?</svg>([^<]*)</li>', page, re.S)
    assert dict(legend) == looks
    figure = StringIO()
    figure_of([chart]).savefig(figure, format="svg")
    lines = re.findall(
        r'<g id="line2d_[^>]*>\s*<path [^>]*style="([^"]*stroke-width: 1.2[^"]*)"',
        figure.getvalue(),
    )
    assert len(set(lines)) == len(names)


def test_stacked_series_lie_on_top_of_each_other():
    series = [Series("a", [0.5, 1.5], [10, 20]), Series("b", [0.5, 1.5], [30, 5])]
    drawn = svg(Chart("", "x", "y", series, stacked=True, top=100))
    tops = [
        [float(point.split(",")[1]) for point in line[1:].split("L")]
        for _, line, _ in drawn["rows"]
    ]
    expected = [
        [BOTTOM + share * (TOP - BOTTOM) for share in row] for row in ((0.1, 0.2), (0.4, 0.25))
    ]
    assert tops == [pytest.approx(row, abs=0.06) for row in expected]


@pytest.mark.parametrize(
    "series",
    [
        pytest.param([Series("a", [], [])], id="no value"),
        pytest.param([Series("a", [float("nan")], [float("nan")])], id="only nan"),
    ],
)
def test_chart_without_values_has_an_axis_from_zero_to_one(series):
    drawn = svg(Chart("", "x", "y", series))
    assert [(axis.low, axis.high) for axis in (drawn["x"], drawn["y"])] == [(0, 1), (0, 1)]
    assert [line for _, line, _ in drawn["rows"]] == [""]


def test_constant_values_have_an_axis_of_some_length():
    drawn = svg(Chart("", "x", "y", [Series("a", [3, 3], [7, 7])]))
    assert drawn["x"].low < drawn["x"].high
    assert drawn["y"].low < drawn["y"].high


def test_at_most_four_hundred_points_of_a_series_are_drawn():
    for number in (400, 801):
        values = np.arange(float(number))
        ((_, line, _),) = svg(Chart("", "x", "y", [Series("a", values, values)]))["rows"]
        assert line.count("L") == 399


def test_figure_has_the_values_of_the_chart():
    series = [Series("a", [1, 2, 40], [0.2, 0.7, 3]), Series("b", [1, 3], [5, 6])]
    chart = Chart("", "Rate", "Time (s)", series, log_x=True, limit=2.5)
    axes = figure_of([chart]).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Rate", "Time (s)")
    assert axes.get_xscale() == "log"
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert drawn["a"] == [[1, 0.2], [2, 0.7], [40, 3]]
    assert drawn["b"] == [[1, 5], [3, 6]]
    assert any((np.asarray(line.get_ydata()) == 2.5).all() for line in axes.lines)


def test_figure_of_stacked_series_has_an_area_for_each():
    series = [Series(name, [0, 1], [1, 2]) for name in "abcd"]
    axes = figure_of([Chart("", "x", "y", series, stacked=True, top=100)]).axes[0]
    assert len(axes.collections) == 4
    assert len({tuple(area.get_facecolor()[0]) for area in axes.collections}) == 4
    assert axes.get_ylim()[1] == 100


SPANS = {
    "start_s": [0.0, 2.0, 3.5],
    "duration_s": [1.0, 1.5, 0.25],
    "live": [8, 20, 5],
    "reserved": [2, 0, 1],
    "internal": [1, 3, 0],
    "running": [2, 4, 1],
    "waiting": [0, 7, 0],
    "swapped": [0, 0, 0],
    "cached": [0, 0, 0],
    "rounding": [0, 0, 0],
    "external_fragmentation": [0, 0, 0],
}
REQUESTS = {"e2e_s": [1.5, 0.25, 3], "output_len": [10, 5, 12]}
POOL_SLOTS = 40


def test_values_over_time_are_means_of_intervals_in_which_idle_time_counts_as_zero():
    """Six intervals of 0.625 s; the second is busy until 1 s, for 0.375 s of it."""
    means = over_time(SPANS)
    assert means["time_s"].tolist() == [0.3125 + 0.625 * i for i in range(6)]
    assert means["live"] == pytest.approx([8, 8 * 0.6, 0, 20 * 0.8, 20, 20 * 0.6 + 5 * 0.4])
    assert means["waiting"] == pytest.approx([0, 0, 0, 7 * 0.8, 7, 7 * 0.6])


def test_a_run_without_iterations_has_values_of_zero():
    means = over_time({name: [] for name in SPANS})
    assert means["live"].tolist() == [0, 0]


def test_values_over_time_have_at_most_six_hundred_intervals():
    many = {name: np.arange(400.0) + (name == "duration_s") for name in SPANS}
    assert len(over_time(many)["time_s"]) == 600


def test_memory_of_a_run_is_stacked_by_kind_up_to_the_whole_pool():
    memory, _, _ = run_charts(REQUESTS, SPANS, POOL_SLOTS)
    assert (memory.stacked, memory.top) == (True, 100)
    assert [series.name for series in memory.series] == [
        "Token states",
        "Reservation",
        "Internal frag.",
        "Free",
    ]
    assert sum(np.asarray(series.y) for series in memory.series) == pytest.approx(np.full(6, 100))
    assert memory.series[0].y[0] == pytest.approx(100 * 8 / POOL_SLOTS)


def test_cached_blocks_are_a_kind_of_their_own_and_stay_while_the_engine_is_idle():
    memory, _, _ = run_charts(REQUESTS, {**SPANS, "cached": [4, 8, 2]}, POOL_SLOTS)
    *_, free, cached = memory.series
    assert (free.name, cached.name) == ("Free", "Cached")
    # The second interval is busy until 1 s and idle from then on.
    assert cached.y[:3] == pytest.approx([100 * 4 / POOL_SLOTS] * 3)
    assert sum(np.asarray(series.y) for series in memory.series) == pytest.approx(np.full(6, 100))
    assert figure_of([memory]) is not None


def test_slots_lost_by_rounding_are_called_external_fragmentation():
    memory, _, _ = run_charts(REQUESTS, {**SPANS, "rounding": [0, 1, 0]}, POOL_SLOTS)
    assert memory.series[-1].name == "External frag. & others"


def test_swapped_requests_are_drawn_where_there_are_some():
    _, states, _ = run_charts(REQUESTS, SPANS, POOL_SLOTS)
    assert [series.name for series in states.series] == ["running", "waiting"]
    _, states, _ = run_charts(REQUESTS, {**SPANS, "swapped": [0, 0, 2]}, POOL_SLOTS)
    assert [series.name for series in states.series] == ["running", "waiting", "swapped"]


def test_a_run_in_which_no_request_has_ended_has_charts():
    """A file without rows says no type of its columns."""
    none = pd.read_csv(StringIO("e2e_s,output_len\n"))
    _, _, latency = run_charts(none, SPANS, POOL_SLOTS)
    assert [len(series.x) for series in latency.series] == [0]


def test_distribution_of_normalized_latency_is_end_to_end_time_by_output_tokens():
    _, _, latency = run_charts(REQUESTS, SPANS, POOL_SLOTS)
    (series,) = latency.series
    assert series.x == pytest.approx([0.25 / 5, 1.5 / 10, 3 / 12])
    assert series.y == pytest.approx([100 / 3, 200 / 3, 100])


@pytest.mark.parametrize(
    ("values", "is_log"),
    [
        pytest.param([1, 9.9], False, id="less than a factor of ten"),
        pytest.param([1, 10], True, id="a factor of ten"),
        pytest.param([0, 10], False, id="a zero"),
        pytest.param([float("nan"), 5], False, id="a value that is missing"),
    ],
)
def test_distribution_is_logarithmic_from_a_factor_of_ten_on(values, is_log):
    chart = cdf_chart("TTFT (s)", {"b": values})
    assert bool(chart.log_x) == is_log
    present = [value for value in values if value == value]
    assert list(chart.series[0].x) == present
    assert chart.series[0].y[-1] == 100


def swept(axes, rows):
    """The charts of a sweep over these axes, by title."""
    return {chart.title: chart for chart in sweep_charts(pd.DataFrame(axes), rows)}


def latencies(*values):
    return [{"normalized_latency_s_per_token_mean": value} for value in values]


def test_sweep_has_a_curve_for_each_word_over_the_numbers_in_order():
    charts = swept(
        {"policy": ["paged", "max"] * 3, "arrivals.rate": ["3", "3", "1", "1", "2", "2"]},
        latencies(0.02, 0.08, 0.18, 0.32, 0.5, 0.72),
    )
    (chart,) = charts.values()
    assert chart.x_label == "Request rate (req/s)"
    curves = {series.name: (list(series.x), list(series.y)) for series in chart.series}
    assert curves == {
        "paged": ([1, 2, 3], [0.18, 0.5, 0.02]),
        "max": ([1, 2, 3], [0.32, 0.72, 0.08]),
    }


def test_sweep_draws_the_objective_that_all_points_share():
    rows = [
        {"ttft_s_p99": 0.5 + i, "slo_ttft_s": 1.5, "tpot_s_p99": 0.1 * i, "slo_tpot_s": 0.2 + i}
        for i in range(3)
    ]
    charts = swept({"arrivals.rate": ["1", "2", "3"]}, rows)
    assert charts["TTFT p99"].limit == 1.5
    assert charts["TPOT p99"].limit is None  # each point has an objective of its own


@pytest.mark.parametrize(
    "axes",
    [
        pytest.param({"arrivals.rate": ["1", "2", "1"]}, id="a rate twice"),
        pytest.param({"policy": list("abc")}, id="no number"),
        pytest.param({"seed": ["1", "x", "3"]}, id="a word among numbers"),
    ],
)
def test_sweep_without_one_value_for_each_number_has_no_chart(axes):
    assert swept(axes, latencies(0.1, 0.2, 0.3)) == {}


@pytest.mark.parametrize(
    ("values", "is_log"),
    [
        pytest.param((0.1, 2, 0), False, id="a zero"),
        pytest.param((0.1, 2.01, 1), True, id="more than a factor of twenty"),
        pytest.param((0.1, 2, 1), False, id="a factor of twenty"),
    ],
)
def test_latency_axis_of_a_sweep_is_logarithmic_beyond_a_factor_of_twenty(values, is_log):
    (chart,) = swept({"server.num_gpus": ["1", "2", "4"]}, latencies(*values)).values()
    assert chart.x_label == "GPUs"
    assert bool(chart.log_y) == is_log
