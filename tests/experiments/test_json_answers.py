"""`--json`: the output has the keys and types of the documented schema, and the tables' numbers."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from tiny_run import tiny_run

from testbed.experiments.cli import json_answers
from testbed.experiments.cli.capacity import seeds_of
from testbed.experiments.cli.json_answers import (
    CapacityAnswer,
    Choices,
    ComparisonAnswer,
    RunAnswer,
    ValidationAnswer,
)
from testbed.experiments.cli.output import print_json
from testbed.experiments.site.json_fields import ANSWERS, meanings_of, page
from testbed.study import sensitivity
from testbed.study.sensitivity import CapacityIntervals

LOG = "input_tokens,output_tokens,arrival_s,first_token_s,finish_s\n9,3,0,0.1,0.2\n9,4,1,1.1,1.3\n"


def check(value, hint, where):
    """The value is of this type, with every key of its class and no other."""
    if is_dataclass(hint):
        assert value.keys() == {field.name for field in fields(hint)}, where
        for name, inner in get_type_hints(hint).items():
            check(value[name], inner, f"{where}.{name}")
    elif get_origin(hint) in (list, tuple, Sequence):
        assert isinstance(value, list), where
        for inner in value:
            check(inner, get_args(hint)[0], where)
    elif get_origin(hint) in (dict, Mapping):
        assert isinstance(value, dict), where
        for inner in value.values():
            check(inner, get_args(hint)[1], where)
    elif hint is not Any:
        kinds = get_args(hint) or (hint,)
        numbers = (int, float) if float in kinds else ()
        assert isinstance(value, (*kinds, *numbers)), f"{where} is {value!r}"
        assert not (isinstance(value, bool) and bool not in kinds), where


def test_every_field_has_a_meaning_and_a_type_on_the_page():
    text = page()
    for name, kind in ANSWERS.items():
        assert set(meanings_of(kind)) == {field.name for field in fields(kind)}, name
        assert f"| {name} | type | meaning |" in text
    assert "| `values` | map of string | the value of every override |" in text
    assert "| `half_width` | number or null |" in text


def test_list_gives_kinds_names_and_sources(testbed, tmp_path):
    (tmp_path / "mine" / "policy").mkdir(parents=True)
    (tmp_path / "mine" / "policy" / "first_fit.yaml").write_text("# Mine\n_target_: a.FirstFit\n")
    answer = json.loads(testbed.done("list", "policy", "model", "--config-dir", "mine", "--json"))
    check(answer, Choices, "choices")
    by_name = {(choice["kind"], choice["name"]): choice for choice in answer["choices"]}
    assert by_name["policy", "first_fit"] == {
        "kind": "policy",
        "name": "first_fit",
        "option": "policy=first_fit",
        "source": "user folder",
        "target": "a.FirstFit",
        "about": "Mine",
    }
    assert (
        by_name["policy", "paged"]["source"] == by_name["model", "opt-13b"]["source"] == "built in"
    )


def test_every_listed_option_is_in_the_table_too(testbed):
    table = testbed.done("list")
    for choice in json.loads(testbed.done("list", "--json"))["choices"]:
        assert re.search(rf"│ {choice['kind']} +│ {re.escape(choice['name'])} ", table), choice


def _first_lines(table):
    return [line for line in table.splitlines() if line.startswith("capacity: ")]


def test_capacity_answers_with_every_tried_rate(testbed):
    words = ("capacity", "slo.ttft_s=0.5", "arrivals.duration_s=20", "--precision", "0.5")
    code, printed, progress = testbed(*words, "--seeds", "2", "--json")
    answer = json.loads(printed)
    assert code == 0
    check(answer, CapacityAnswer, "capacity")
    assert [of_seed["seed"] for of_seed in answer["seeds"]] == [0, 1]
    assert sum(len(of_seed["tried"]) for of_seed in answer["seeds"]) == progress.count("req/s")
    for of_seed in answer["seeds"]:
        best = next(point for point in of_seed["tried"] if point["rate"] == of_seed["rate"])
        assert best["share_inside"] == of_seed["share_inside"] >= answer["share"] == 0.9
    rates = [of_seed["rate"] for of_seed in answer["seeds"]]
    assert answer["rate"] == sum(rates) / 2
    of_seeds = 12.7062 * abs(rates[0] - rates[1]) / 2
    assert answer["step"] == max(rates) / 2  # of --precision
    assert answer["half_width"] == pytest.approx(of_seeds + answer["step"], rel=1e-4)
    table = testbed(*words, "--seeds", "2")[1]
    assert "95% interval of 2 seeds" in table
    assert "error when tested" in table
    (first,) = _first_lines(table)
    assert "--sensitivity" in first  # the interval is of the seeds alone


def test_capacity_of_one_seed_says_that_its_error_is_unknown(testbed):
    words = ("slo.ttft_s=0.5", "arrivals.duration_s=5", "--precision", "1")
    assert "error is not known" in testbed("capacity", *words, "seed=3")[1]
    for seed in ("seed=3", "++seed=3"):
        assert "--seeds 2" in testbed.refused("capacity", *words, seed, "--seeds", "2")
    assert seeds_of(["++seed=3"], None) == [3]


@pytest.fixture
def varied_once(monkeypatch):
    """The searches of a sensitivity, dozens of runs, are made once for each rate, share and
    precision.
    """
    search, found = sensitivity.capacity_intervals, dict[tuple[float, ...], CapacityIntervals]()

    def kept(config, *question):
        if question not in found:
            found[question] = search(config, *question)
        return found[question]

    monkeypatch.setattr(sensitivity, "capacity_intervals", kept)


@pytest.mark.usefixtures("varied_once")
def test_capacity_says_how_sensitive_it_is(testbed):
    words = ("capacity", "slo.ttft_s=0.5", "arrivals.duration_s=2", "--precision", "1")
    _, printed, _ = testbed(*words, "seed=3", "--sensitivity", "--json")
    answer = json.loads(printed)
    check(answer, CapacityAnswer, "capacity")
    (of_seed,) = answer["seeds"]
    for interval in answer["intervals"]:
        assert interval["lowest"] <= of_seed[interval["metric"]] <= interval["highest"]
    assert [interval["metric"] for interval in answer["intervals"]] == ["rate", "share_inside"]
    low, high = (answer["intervals"][0][end] for end in ("lowest", "highest"))
    (first,) = _first_lines(testbed(*words, "seed=3", "--sensitivity")[1])
    assert f"{low:.3g} to {high:.3g} req/s" in first
    fails = ("faults=engine 0 at 1 s", "replicas=2", "--sensitivity")
    assert "faults: --sensitivity" in testbed.refused(*words, *fails)


def test_a_run_says_how_sensitive_it_is(testbed):
    words = ("run", "arrivals.duration_s=5", "trace=alpaca")
    answer = json.loads(testbed.done(*words, "--sensitivity", "--json"))
    check(answer, RunAnswer, "run")
    figures = {row["figure"]: (row["lowest"], row["highest"]) for row in answer["intervals"]}
    low, high = figures["ttft_mean_s"]
    assert low < answer["summary"]["ttft_s"]["mean"] < high
    assert "--sensitivity" in testbed.refused(*words, "--sensitivity", "-m")
    assert "faults: --sensitivity" in testbed.refused(
        *words, "--sensitivity", "faults=engine 0 at 1 s", "replicas=2"
    )


def test_comparison_has_every_number_of_its_csv(testbed, tmp_path):
    for name, blocks in (("a", 18), ("b", 30)):
        tiny_run(tmp_path / name, blocks=blocks)
    answer = json.loads(testbed.done("compare", "x=a", "b", "--csv", "all.csv", "--json"))
    check(answer, ComparisonAnswer, "comparison")
    assert [run["name"] for run in answer["runs"]] == ["x", "b"]
    assert any(row["key"].startswith("server.kv_memory_gib") for row in answer["differences"])
    rows = (tmp_path / "all.csv").read_text().splitlines()[1:]
    assert len(answer["numbers"]) == len(rows)
    for row, line in zip(answer["numbers"], rows, strict=True):
        assert line.startswith((f"{row['group']},{row['quantity']},", f'{row["group"]},"'))


@pytest.mark.parametrize(("within", "code"), [("1e9", 0), ("1e-9", 1)])
def test_validation_has_errors_effects_and_the_verdict(testbed, tmp_path, within, code):
    (tmp_path / "log.csv").write_text(LOG)
    words = ("validate", "log.csv", "model=opt-13b", "--what-if", "policy.block_size=32")
    exit_code, printed, _ = testbed(*words, "--within", within, "--json")
    answer = json.loads(printed)
    check(answer, ValidationAnswer, "validation")
    assert exit_code == code
    assert answer["is_within"] == (code == 0)
    assert answer["within_percent"] == float(within)
    assert {row["log"] for row in answer["errors"]} == {"log.csv"}
    assert {row["change"] for row in answer["effects"]} == {"policy.block_size=32"}
    metrics = [row["metric"] for row in answer["errors"]]
    assert [row["metric"] for row in answer["effects"]] == metrics
    table = testbed(*words)[1]
    for row in answer["errors"]:
        assert f"{row['metric']}" in table
        assert f"{row['simulated']:.4g}" in table


def test_number_that_is_not_finite_becomes_null(capsys):
    print_json(json_answers.MetricError("a", "b", 0.0, 1.0))
    assert json.loads(capsys.readouterr().out)["error_percent"] is None
