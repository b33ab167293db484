"""The table of `testbed.sweep`: means over seeds with intervals, and a figure."""

import pandas as pd
import pytest
from refusals import refuses

import testbed
from testbed.study.replications import interval
from testbed.study.swept import Sweep

LOAD = {"duration_s": 20, "jobs": 1}


@pytest.fixture(scope="module")
def table():
    return testbed.sweep(policy=["paged", "contiguous_max"], rate=[1, 2, 4], seed=[0, 1], **LOAD)


def test_the_summary_has_the_mean_and_the_interval_of_each_setting(table):
    summary = table.summary
    assert summary[["policy", "rate"]].to_numpy().tolist() == [
        [policy, rate] for policy in ("paged", "contiguous_max") for rate in (1, 2, 4)
    ]
    for _, row in summary.iterrows():
        runs = table[(table["policy"] == row["policy"]) & (table["rate"] == row["rate"])]
        mean = interval(runs["ttft_s_p50"].tolist())
        assert row["ttft_s_p50"] == mean.mean
        assert row["ttft_s_p50 ±"] == mean.half_width


def test_a_sweep_without_seeds_has_no_intervals():
    summary = testbed.sweep(rate=[1, 2], **LOAD).summary
    assert summary["ttft_s_p50 ±"].isna().all()
    assert summary["rate"].tolist() == [1, 2]


def test_a_mean_that_a_seed_lacks_is_none():
    table = Sweep({"seed": [0, 1], "rate": [1, 1], "ttft": [0.5, None], "tpot": [1.0, 3.0]})
    table.attrs["axes"] = ["seed", "rate"]
    (row,) = table.summary.to_dict("records")
    assert row["ttft"] is None
    assert row["tpot"] == 2.0


def test_an_axis_of_objectives_is_a_column_of_text():
    objectives = [{"ttft_s": 0.02}, {"ttft_s": 1, "tpot_s": 0.1}]
    summary = testbed.sweep(rate=1, slo=objectives, seed=[0, 1], **LOAD).summary
    assert summary["slo"].tolist() == ["ttft_s=0.02", "ttft_s=1, tpot_s=0.1"]
    assert not any(str(name).startswith("seed") for name in summary)


def test_the_plot_has_a_band_for_each_setting(table):
    figure = table.plot()
    assert [axes.get_ylabel() for axes in figure.axes]
    legends = [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]
    names = [text.get_text() for legend in legends for text in legend.get_texts()]
    assert {"paged", "contiguous_max"} <= set(names)
    assert any(axes.collections for axes in figure.axes)  # the bands
    (panel,) = table.plot("itl_s_p99").axes
    assert panel.get_ylabel() == "ITL p99 (s)"


def test_a_sweep_without_an_axis_of_numbers_has_no_plot():
    table = testbed.sweep(policy=["paged", "contiguous_max"], rate=1, **LOAD)
    refuses("plot: ", table.plot)


def test_what_is_selected_of_a_sweep_is_a_plain_data_frame(table):
    assert type(table[["policy", "rate"]]) is pd.DataFrame
