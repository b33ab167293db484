"""Comparisons of runs: references, remarks, changes, curves; and how a summary
reads.
"""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from tiny_run import tiny_result

from testbed.experiments.look.compare.differences import independent_differences, words_of_each
from testbed.experiments.look.compare.finished_run import FinishedRun
from testbed.experiments.look.compare.run_comparison import compare, tidy
from testbed.experiments.look.compare.tables import (
    change,
    charts,
    compare_page,
    texts,
    ttft_by_arrival,
)
from testbed.experiments.runs.quantities import number, percent, quantities
from testbed.experiments.runs.summary_table import summary_table


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The finished run of seven requests on ten blocks."""
    result = tiny_result(tmp_path_factory.mktemp("tiny"))
    summary = json.loads(json.dumps(result.summary))
    values = result.setup.config.values
    return FinishedRun(
        name="one",
        folder=None,
        config=values,
        summary=summary,
        requests=result.requests,
        spans=result.iterations,
    )


def changed(run, name, **more):
    """The run under another name, with other values in its summary."""
    return replace(run, name=name, summary={**run.summary, **more})


def of_a_gpu(run, name="gpu"):
    return changed(run, name, engine={"kind": "gpu"})


def test_simulations_are_compared_with_the_first_run(run):
    compared = compare([run, changed(run, "slow"), changed(run, "slower")])
    assert compared.references == [0, 0]
    assert compared.words == ["change", "change"]


def test_simulation_is_compared_with_the_measured_run(run):
    compared = compare([of_a_gpu(run), run, of_a_gpu(run, "gpu 2")])
    assert compared.references == [0, 0]
    assert compare([of_a_gpu(run), run]).words == ["error"]


def test_a_simulation_beside_others_is_compared_with_the_last_measured_run(run):
    compared = compare([run, of_a_gpu(run), changed(run, "slow")])
    assert compared.references[0] == 0
    assert compared.words == ["error", "change"]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(
            lambda run: changed(run, "x", stopped_at_latency=0.12345),
            ("x was stopped as overloaded", "0.123 s/token"),
            id="stopped",
        ),
        pytest.param(
            lambda run: replace(run, name="x", requests=None),
            ("x has no requests.csv", "run it again with outputs=tables"),
            id="no table of requests",
        ),
        pytest.param(
            lambda run: replace(run, name="x", spans=None),
            ("x has no iterations.csv", "run it again with outputs=tables"),
            id="no table of iterations",
        ),
        pytest.param(
            lambda run: changed(
                run, "x", requests={"arrived": 1300, "finished": 70, "rejected": 9}
            ),
            ("x is unfinished", "1,221 of 1,300 requests"),
            id="unfinished",
        ),
        pytest.param(
            lambda run: changed(run, "x", requests={"arrived": 7, "finished": 0, "rejected": 0}),
            ("x is unfinished", "7 of 7 requests"),
            id="nothing finished",
        ),
    ],
)
def test_a_run_that_lacks_what_is_compared_is_named(run, spoil, words):
    remarks = list(compare([run, spoil(run)]).remarks)
    assert any(all(word in remark for word in words) for remark in remarks), remarks


def test_a_run_whose_queue_grows_is_called_overloaded(run):
    rates = {"served_requests_per_s": 0.0, "offered_requests_per_s": 1.0}
    behind = replace(run, name="x", summary={**run.summary, "overload": rates})
    remarks = " ".join(compare([run, behind]).remarks)
    assert "x is overloaded: 0 of 1 req/s get a first token in the second half" in remarks


SAME = "all runs serve the same requests"
OTHER = "the runs do not serve the same requests"


@pytest.mark.parametrize(
    ("requests", "remark"),
    [
        pytest.param(lambda table: table, SAME, id="the same"),
        pytest.param(
            lambda table: table.assign(arrival_s=table["arrival_s"] + 4e-7), SAME, id="below 1 us"
        ),
        pytest.param(
            lambda table: table.assign(arrival_s=table["arrival_s"] + 2e-6), OTHER, id="above 1 us"
        ),
        pytest.param(lambda table: table.iloc[4:], SAME, id="the later ones"),
        pytest.param(
            lambda table: table.assign(request_id=table["request_id"] + 100), OTHER, id="other ids"
        ),
    ],
)
def test_the_same_requests_are_those_of_equal_ids_and_arrivals(run, requests, remark):
    other = replace(run, name="other", requests=requests(run.requests))
    assert list(compare([run, other]).remarks) == [remark]


def test_changes_are_in_percent_of_the_reference_and_in_points_of_shares(run):
    slow = changed(
        run,
        "slow",
        simulated_s=2 * run.summary["simulated_s"],
        preemptions={"swap": 3, "recompute": 0},
    )
    table = tidy(compare([run, slow])).query("run == 'slow'").set_index(["group", "quantity"])
    assert table.loc[("requests", "time"), "change"] == pytest.approx(100)
    assert table.loc[("requests", "time"), "change_unit"] == "%"
    assert table.loc[("preemptions", "recompute"), "change"] == pytest.approx(-100)
    assert np.isnan(table.loc[("preemptions", "swap"), "change"])  # of none to three
    assert table.loc[("memory per iteration", "token states"), "change_unit"] == "points"
    assert set(table["reference"]) == {"one"}


def quantity(is_share):
    return next(each for each in quantities() if each.is_share is is_share)


@pytest.mark.parametrize(
    ("is_share", "value", "text"),
    [
        (True, None, "-"),
        (True, -3.456, "-3.46 pt"),
        (False, None, "-"),
        (False, 0.0, "+0.0%"),
        (False, -3.456, "-3.5%"),
        (False, 899.96, "+900.0%"),
        (False, 900.0, "x 10"),
        (False, 1234.0, "x 13.34"),
    ],
)
def test_changes_are_shown_in_percent_in_points_or_as_a_factor_from_ten_on(is_share, value, text):
    assert change(quantity(is_share), value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (0.123456, "0.1235"), (999.96, "1,000"), (12345.6, "12,346")],
)
def test_numbers_are_shown_with_four_digits(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0, "0.0%"), (0.12345, "12.3%"), (1, "100.0%")]
)
def test_shares_are_shown_in_percent(value, text):
    assert percent(value) == text


def test_share_of_found_tokens_is_that_of_all_prompts_tokens():
    share = next(each for each in quantities() if each.whole)
    assert share.value({"counters": {"hit_tokens": 30, "tokens": 120}}) == 25.0
    assert share.value({"counters": {"hit_tokens": 30}}) is None
    assert share.value({}) is None


def test_curves_are_drawn_of_the_runs_that_have_tables(run):
    old = replace(run, name="old", requests=None)
    drawn = {chart.title: [s.name for s in chart.series] for chart in charts([run, old])}
    assert drawn["KV cache"] == ["one", "old"]
    assert drawn["TTFT, distribution"] == ["one"]
    assert list(charts([replace(old, spans=None)])) == []


def test_first_token_times_by_arrival_are_means_of_sixty_intervals():
    values = np.arange(121.0)
    times, means = ttft_by_arrival(pd.DataFrame({"arrival_s": values, "ttft_s": 2 * values}))
    assert len(times) == 60
    assert times[:3].tolist() == [0.5, 2.5, 4.5]
    assert means[:3].tolist() == [1.0, 5.0, 9.0]


def test_few_first_token_times_are_shown_one_by_one():
    values = np.arange(7.0)
    times, means = ttft_by_arrival(pd.DataFrame({"arrival_s": values, "ttft_s": 2 * values}))
    assert times.tolist() == values.tolist()
    assert means.tolist() == (2 * values).tolist()


def shown(summary):
    """The lines of its table, by the words that they begin with."""
    console = Console(width=180, record=True)
    with console.capture() as captured:
        for text in [summary_table(summary)]:
            console.print(text)
    cells = [line.split("│") for line in captured.get().splitlines() if line.count("│") >= 3]
    return {row[1].strip(): row[2].strip() for row in cells}


def test_summary_shows_objectives_counters_and_overload(run):
    rows = shown(
        {
            **run.summary,
            "slo": {
                "ttft_s": None,
                "tpot_s": 0.5,
                "share_inside": 0.98765,
                "goodput_requests_per_s": 1234.56,
            },
            "counters": {"blocks": 3000, "hit_blocks": 1000, "some_thing": 2},
            "stopped_at_latency": 0.5,
            "overload": {"served_requests_per_s": 0.59, "offered_requests_per_s": 1.0},
        }
    )
    assert rows["requests"] == "7 arrived, 7 finished, 0 rejected"
    for word in ("98.8% of the requests", "1,235 req/s", "TPOT 0.5 s"):
        assert word in rows["inside the objectives"]
    for word in ("33.3%", "3,000 blocks", "1,000 hit blocks", "2 some thing"):
        assert word in rows["counted by the policy"]
    assert "0.5 s/token" in rows["stopped early"]
    assert "0.59 of 1 req/s get a first token" in rows["overloaded"]


def free_memory(run, external, free, cached, largest):
    parts = {"free": free, "cached": cached, "largest_free": largest}
    return {
        **run.summary,
        "memory": {**run.summary["memory"], "external": {"per_iteration": external}},
        "memory_free": {name: {"per_iteration": share} for name, share in parts.items()},
    }


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        pytest.param((0.3, 0.3, 0.1, 0.3), "cached 10.0%, empty 20.0%", id="one free piece"),
        pytest.param((0.3, 0.3, 0.0, 0.3), "free 30.0%", id="nothing cached"),
        pytest.param((0.3, 0.3, 0.1, 0.2), "external 30.0%", id="several free pieces"),
        pytest.param((0.3, None, None, 0.3), "external 30.0%", id="unknown pieces"),
    ],
)
def test_unused_memory_is_free_where_it_is_one_piece_and_external_otherwise(run, shares, words):
    row = shown(free_memory(run, *shares))["memory per iteration"]
    assert row.endswith(words)


def named_model(run, name, model, **fields):
    """The run of a model with this name and these fields."""
    config = {**run.config, "model": {**run.config["model"], "name": model, **fields}}
    return replace(run, name=name, config=config)


def shown_lines(comparison, **options):
    console = Console(record=True, width=100)
    console.print(*texts(comparison, **options))
    return console.export_text()


def test_fields_that_follow_from_the_names_of_models_are_behind_all(run):
    small, large = named_model(run, "a", "small"), named_model(run, "b", "large", num_layers=9)
    compared = compare([small, large])
    assert "model.name" in shown_lines(compared)
    assert "model.num_layers" not in shown_lines(compared)
    assert "--all shows them" in shown_lines(compared)
    assert "model.num_layers" in shown_lines(compared, shows_all=True)
    assert "model.num_layers" in compare_page(compared)


def test_a_field_that_differs_between_runs_of_one_name_is_shown(run):
    small, large = named_model(run, "a", "small"), named_model(run, "b", "large", num_layers=9)
    longer = named_model(run, "c", "large", num_layers=12)
    assert "model.num_layers" in shown_lines(compare([small, large, longer]))


def test_runs_of_several_kinds_are_named_by_their_parts(run):
    """Not by the number of blocks, which follows from them and is absent in one of them."""
    kinds = [
        {"policy": {"_target_": "a.Paged"}, "speculation": None, "server": {"num_blocks": None}},
        {"policy": {"_target_": "a.Caching"}, "speculation": None, "server": {"num_blocks": 28043}},
        {
            "policy": {"_target_": "a.Caching"},
            "speculation": {"_target_": "a.Heads"},
            "server": {"num_blocks": 27000},
        },
    ]
    runs = [replace(run, name=str(n), config=config) for n, config in enumerate(kinds)]
    words = words_of_each(independent_differences(runs))
    assert words == ["paged, no speculation", "caching, no speculation", "caching, heads"]


def test_runs_are_named_by_a_server_s_option_before_the_blocks_that_it_leaves(run):
    """As of two commands of vLLM, one with --max-num-seqs 16: its pool is larger."""
    configs = [
        {"server": {"num_blocks": blocks}, "scheduler": {"max_num_seqs": seqs}}
        for blocks, seqs in ((27705, 1024), (28317, 16))
    ]
    runs = [replace(run, name=str(n), config=config) for n, config in enumerate(configs)]
    assert words_of_each(independent_differences(runs)) == ["max_num_seqs 1024", "max_num_seqs 16"]
    sizes = [replace(run, config={"server": {"num_blocks": blocks}}) for blocks in (500, 600)]
    assert words_of_each(independent_differences(sizes)) == ["num_blocks 500", "num_blocks 600"]
