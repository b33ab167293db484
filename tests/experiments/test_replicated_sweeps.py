"""Sweeps over seeds: one row for each setting, differences on the same seeds, curves with bands."""

import json
import re
from math import sqrt
from statistics import mean, stdev

import pandas as pd
import pytest
from refusals import refuses

from testbed.api import capacities
from testbed.experiments.look.compare.differences import independent_differences
from testbed.experiments.look.compare.finished_run import read_run
from testbed.experiments.look.pages.page import svg
from testbed.experiments.look.report.folder_page import folder_page
from testbed.experiments.runs.points import Point, settings
from testbed.experiments.runs.replicated import difference_columns, mean_columns
from testbed.experiments.runs.sweep_table import replicated_tables, sweep_charts
from testbed.run.summaries import flat

SHORT = ("arrivals.duration_s=10", "outputs=summary")
TPOT = "TPOT p99, s"


def points(tpot):
    """A point for each policy, rate and seed, with this p99 of TPOT by policy, rate and seed."""
    return [
        Point(
            {"policy": policy, "arrivals.rate": rate, "seed": seed},
            {"tpot_s": {"p99": value}},
            f"{policy}-{rate}-{seed}",
        )
        for (policy, rate, seed), value in tpot.items()
    ]


def two_policies(better, worse):
    """Points of policies a and b at one rate, by seed."""
    values = {("a", "1", str(seed)): value for seed, value in enumerate(better)}
    return points(values | {("b", "1", str(seed)): value for seed, value in enumerate(worse)})


def test_points_that_differ_in_their_seed_are_one_setting():
    groups = settings(two_policies([0.1, 0.2], [0.3, 0.4]))
    assert [(group.chosen, group.seeds) for group in groups] == [
        ({"policy": "a"}, ["0", "1"]),
        ({"policy": "b"}, ["0", "1"]),
    ]


@pytest.mark.parametrize(
    ("key", "pool"),
    [
        ("server.num_blocks", {"16": "400", "64": "100"}),
        ("server.kv_memory_gib", {"16": "{gemma: 2.5}", "64": "{gemma: 2.4}"}),
    ],
)
def test_an_axis_that_follows_from_another_does_not_part_the_pairs(key, pool):
    """A server's command fixes the bytes of the pool, so that its blocks follow from their size."""
    swept = [
        Point(
            {key: pool[size], "policy.block_size": size, "seed": str(seed)},
            {"tpot_s": {"p99": 0.1 + 0.3 * seed + 1e-6 * int(size)}},
            f"{size}-{seed}",
        )
        for size in pool
        for seed in range(2)
    ]
    axes, _ = difference_columns(settings(swept))
    assert axes == {"policy.block_size": ["64 - 16"]}


@pytest.mark.parametrize(
    ("better", "worse", "said"),
    [
        ([0.10, 0.50, 0.90], [0.11, 0.51, 0.91], "0.01 ± "),
        ([0.10, 0.50, 0.90], [0.11, 0.49, 0.90], "not distinguishable"),
        ([0.10, 0.50, 0.90], [0.10, 0.50, 0.90], "equal"),
    ],
)
def test_differences_say_what_the_seeds_tell(better, worse, said):
    worse = [value + 1e-5 * i * (value not in better) for i, value in enumerate(worse)]
    axes, results = difference_columns(settings(two_policies(better, worse)))
    assert axes["policy"] == ["b - a"]
    assert results[TPOT][0].startswith(said.split(" ±")[0])


def test_mean_of_fewer_seeds_than_the_others_is_not_shown():
    groups = settings(two_policies([0.1, None], [0.3, 0.4]))
    assert mean_columns(groups)[1][TPOT][0] == "-"
    assert difference_columns(groups)[1].get(TPOT, ["-"]) == ["-"]


def test_sweep_over_seeds_prints_one_row_for_each_setting(testbed, tmp_path):
    words = ("run", "-m", "policy=contiguous_max,paged", *SHORT)
    output = testbed.done(*words, "--seeds", "3")
    rows = re.findall(r"^│ (contiguous_max|paged) +│", output, re.MULTILINE)
    assert rows == ["contiguous_max", "paged"]
    assert "mean of 3 seeds" in output
    assert "paged - contiguous_max" in output
    assert len(pd.read_csv(tmp_path / "runs" / "sweep.csv")) == 6


STUDENT_T_OF_2 = 4.302653  # 97.5%, two degrees of freedom (any table of Student's t)
QUANTITIES = {
    "TTFT p99, s": lambda summary: summary["ttft_s"]["p99"],
    "recomputes": lambda summary: summary["preemptions"]["recompute"],
    "swaps": lambda summary: summary["preemptions"]["swap"],
}


def differences(folder, quantity):
    """Of contiguous from paged memory, by seed, in the summaries of runs in a folder."""
    runs = [json.loads(path.read_text()) for path in folder.glob("*/summary.json")]
    of = {
        (run["run"]["policy"].split("(")[0], run["run"]["seed"]): QUANTITIES[quantity](run)
        for run in runs
    }
    return [of["ContiguousMax", seed] - of["Paged", seed] for seed in range(3)]


def test_differences_on_the_same_seeds_name_their_settings(testbed, tmp_path):
    """Three repetitions separate waits, not how often requests recompute; swaps are none at all."""
    load = ("arrivals.rate=3", "arrivals.duration_s=20", "outputs=summary")
    words = ("policy=paged,contiguous_max", *load, "--seeds", "3", "hydra.sweep.dir=again")
    output = testbed.done("run", "-m", *words)
    table = output.partition("Differences on the same seeds")[2]
    (head,) = re.findall(r"(?m)^┃ policy (.*)┃$", table)
    (row,) = re.findall(r"(?m)^│ contiguous_max - paged (.*)│$", table)
    cells = dict(zip(map(str.strip, head.split("┃")), map(str.strip, row.split("│")), strict=True))
    margins = {}
    for quantity in QUANTITIES:
        by_seed = differences(tmp_path / "again", quantity)
        margins[quantity] = mean(by_seed), STUDENT_T_OF_2 * stdev(by_seed) / sqrt(3)
    shown_mean, shown_margin = map(float, cells["TTFT p99, s"].split(" ± "))
    wait, margin = margins["TTFT p99, s"]
    assert wait > margin
    assert (shown_mean, shown_margin) == (round(wait), round(margin))
    fewer, margin = margins["recomputes"]
    assert abs(fewer) < margin
    assert cells["recomputes"].startswith("not distinguishable (")
    assert margins["swaps"] == (0, 0)
    assert "swaps" not in cells  # equal on every seed


def test_seed_and_seeds_together_are_refused(testbed):
    for seed in ("seed=1", "++seed=1"):
        assert "--seeds 3" in testbed.refused("run", "-m", *SHORT, seed, "--seeds", "3")


def test_a_seed_that_is_named_twice_is_no_replication(testbed):
    assert ": seed=0,1,0: " in testbed.refused("run", "-m", *SHORT, "seed=0,1,0")
    refuses(r"seeds=\[0, 1, 0\]: ", capacities, seeds=[0, 1, 0], ttft_s=1.0)


def test_curves_over_seeds_have_bands_around_their_means():
    axes = pd.DataFrame(
        [(rate, seed) for rate in (1, 2, 4) for seed in (0, 1, 2)],
        columns=["arrivals.rate", "seed"],
    )
    rows = [
        {"normalized_latency_s_per_token_mean": rate + seed / 10}
        for rate, seed in axes.to_numpy().tolist()
    ]
    (chart,) = sweep_charts(axes, rows)
    (curve,) = chart.series
    assert list(curve.y) == pytest.approx([1.1, 2.1, 4.1])
    assert all(low < mean < high for mean, (low, high) in zip(curve.y, curve.band, strict=True))
    assert svg(chart)["bands"][0].endswith("Z")


def test_a_figure_draws_the_metrics_that_are_named():
    axes = pd.DataFrame([1, 2, 4], columns=["arrivals.rate"])
    rows = [
        {"ttft_s_p50": rate, "counters_hit_tokens": rate, "counters_tokens": 8, "slo_ttft_s": 3}
        for rate in (1, 2, 4)
    ]
    first, second = sweep_charts(axes, rows, ["ttft_s.p50", "counters_hit_tokens"])
    assert (first.title, list(first.series[0].y), first.limit) == ("TTFT p50", [1, 2, 4], 3)
    assert list(second.series[0].y) == [12.5, 25, 50]  # a share, in percent
    assert "%" in second.y_label
    refuses("ttft_p50: ", sweep_charts, axes, rows, ["ttft_p50"])


def test_report_has_a_curve_for_each_policy_whatever_the_seeds(testbed, tmp_path):
    rates, policies = "arrivals.rate=1,2,3", "policy=paged,contiguous_max"
    testbed.done("run", "-m", policies, rates, "--seeds", "2", *SHORT, "hydra.sweep.dir=sweep")
    runs = [read_run(path.name, path) for path in (tmp_path / "sweep").glob("*/")]
    axes = independent_differences(runs)
    assert set(axes) == {"policy", "seed", "arrivals.rate"}
    charts = sweep_charts(axes, [flat(run.summary) for run in runs])
    assert {len(chart.series) for chart in charts} == {2}
    assert {len(series.band) for series in charts[0].series} == {3}


def test_report_has_a_row_for_each_setting_and_the_seeds_behind_a_click(testbed, tmp_path):
    words = ("policy=paged,contiguous_pow2", "--seeds", "2", *SHORT, "hydra.sweep.dir=sweep")
    testbed.done("run", "-m", *words)
    page = folder_page([tmp_path / "sweep"])
    means, differences, seeds, *_ = re.findall("<tbody>(.*?)</tbody>", page, re.DOTALL)
    assert means.count("<tr>") == 2
    assert " ± " in means
    assert "policy: true output lengths" in means
    assert "paged - contiguous pow2" in differences
    assert seeds.count("<tr>") == 2 * 2
    assert "<summary>Every seed</summary>" in page.partition(seeds)[0]


def test_what_all_differences_have_alike_is_said_beside_their_table():
    """TTFT tells both policies from the first one, TPOT neither."""
    tpot = {"a": (0.1, 0.2), "b": (0.2, 0.1), "c": (0.15, 0.14)}
    ttft = {"a": (1.0, 1.1), "b": (2.0, 2.1), "c": (3.0, 3.1)}
    swept = [
        Point(
            {"policy": policy, "seed": str(seed)},
            {"tpot_s": {"p99": tpot[policy][seed]}, "ttft_s": {"p99": ttft[policy][seed]}},
            f"{policy}-{seed}",
        )
        for policy in "abc"
        for seed in range(2)
    ]
    *lines, _, differences = replicated_tables(settings(swept), 120, {})
    heads = [str(column.header) for column in differences.columns]
    assert heads == ["policy", "TTFT p99, s"]
    assert any("TPOT p99, s not distinguishable" in str(line) for line in lines)


def test_a_difference_that_is_shown_has_its_means_beside_it():
    """However narrow the table, and if the means are equal as they are printed."""
    swept = [
        Point(
            {"policy": policy, "seed": str(seed)},
            {
                "ttft_s": {"p50": 1.0 + seed, "p99": 2.0 + seed + 0.001 * (policy == "b")},
                "tpot_s": {"p50": 0.1 + 0.1 * seed, "p99": 0.5 + seed + 0.9 * (policy == "b")},
            },
            f"{policy}-{seed}",
        )
        for policy in "ab"
        for seed in range(2)
    ]
    for width in range(40, 140, 10):
        *_, means, differences = replicated_tables(settings(swept), width, {})
        shown, told = ([str(of.header) for of in table.columns] for table in (means, differences))
        assert {*told} <= {*shown}, width
        assert "TTFT p99, s" in told
