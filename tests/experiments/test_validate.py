"""Validation: a simulated log is met exactly; transfers, left-out profiles and least squares."""

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from drawings import saved_figures
from import_fixtures import write_every_table, write_llmservingsim
from matplotlib.image import imread
from refusals import refuses
from transfer_totals import simulated_seconds

import testbed.kernels
from testbed.cost.known_profiles import profiles_at_hand
from testbed.experiments.cli.main import call
from testbed.experiments.real.importers.known_shapes import gpu_named
from testbed.experiments.real.validation.gauss_newton import Point, descend, uncertainty
from testbed.experiments.real.validation.log_replay import replay, server_config
from testbed.experiments.real.validation.software_fit import Fitted
from testbed.traces.vllm_log import VllmLog

SYSTEM = (
    "+system=vllm-v1",
    "cost=profile",
    "swap_space_gib=0.001",
)  # pools of the toy's tiny blocks take long
LENGTHS = [(40, 30, 0.0), (100, 1, 0.001), (20, 60, 0.001), (200, 25, 0.004), (33, 12, 0.03)]


def write_log(path, rows, start=1000.0):
    """A vLLM log of (input, output, arrival, first token, last token)."""
    lines = [
        json.dumps(
            {
                "request_id": f"bench-{i}",
                "input_toks": prompt,
                "output_toks": output,
                "arrival_time": 5e9 + i,
                "queued_ts": start + arrival,
                "scheduled_ts": start + arrival,
                "first_token_ts": start + first,
                "last_token_ts": start + last,
            }
        )
        for i, (prompt, output, arrival, first, last) in enumerate(rows)
    ]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def simulated_log(tmp_path, profile):
    """The log that the simulated server itself would have written."""
    guess = write_log(tmp_path / "guess.jsonl", [(*row, row[2] + 1, row[2] + 2) for row in LENGTHS])
    times = replay(
        VllmLog(guess), server_config([*SYSTEM, f"cost.path={profile}", "server.num_blocks=64"])
    ).times
    rows = [
        (*row[:2], *moments)
        for row, *moments in zip(
            LENGTHS, times.arrival_s, times.first_token_s, times.finish_s, strict=True
        )
    ]
    return write_log(tmp_path / "requests.jsonl", rows)


def test_simulated_log_is_reproduced_exactly(
    testbed, tmp_path, profile, simulated_log, monkeypatch
):
    drawn, out = saved_figures(monkeypatch), tmp_path / "errors.csv"
    arguments = (
        simulated_log,
        *SYSTEM,
        f"cost.path={profile}",
        "server.num_blocks=64",
        "--csv",
        str(out),
    )
    reported = testbed.done(
        "validate", *arguments, "--within", "0.01", "--figure", str(tmp_path / "f.png")
    )
    assert imread(tmp_path / "f.png").shape[:2] == (364, 1885)
    (figure,) = drawn
    assert sum(bool(axes.lines or axes.patches) for axes in figure.axes) >= 2
    rows = list(csv.DictReader(out.open()))
    assert list(rows[0]) == ["log", "metric", "real", "simulated", "error_percent"]
    assert {row["log"] for row in rows} == {simulated_log}
    assert max(abs(float(row["error_percent"])) for row in rows) < 1e-3
    assert "it keeps 1 for itself (null_blocks), so 63 hold tokens" in reported


def test_assumed_server_settings_and_large_errors_are_reported(
    testbed, tmp_path, profile, simulated_log
):
    limits = {"max_num_seqs": 7, "max_num_batched_tokens": None}
    (tmp_path / "meta.json").write_text(json.dumps({"engine_kwargs": limits}))
    line = (
        simulated_log,
        *SYSTEM,
        f"cost.path={profile}",
        "server.workspace_gib=0",
        "cost.software.overhead_s=1e-3",
    )
    for word, reason in (
        ("server.num_block=9", "server.num_blocks"),
        ("trace=csv", "the log has every request and its"),
    ):
        assert reason in testbed.refused("validate", *line, word)
    code, reported, _ = testbed(
        "validate", *line, "--within", "5", "--what-if", "seed=1 scheduler.max_num_seqs=2"
    )
    assert code == 1
    for words in (
        "the log does not say how many KV blocks there were",
        "meta.json says max_num_seqs 7, simulated with 256",
        "what if, compared with the simulation of the unchanged server",
        "seed=1 scheduler.max_num_seqs=2",
        "not within 5%: tpot_s_",
    ):
        assert words in reported


RESULTS = Path(testbed.kernels.__file__).resolve().parent / "results"
RUNS = sorted(path.parent for path in (RESULTS / "engine" / "swaps").glob("*/swaps.csv"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_simulated_transfers_take_the_engines_measured_time(run, monkeypatch):
    """All transfers of a run together within 10%."""
    monkeypatch.chdir(RESULTS.parents[1])  # the config names the requests from here
    simulated, measured = simulated_seconds(run), pd.read_csv(run / "swaps.csv")
    assert set(simulated) == set(measured.way)
    assert len(simulated) == 2, "both ways are compared"
    assert sum(simulated.values()) == pytest.approx(measured.seconds.sum(), rel=0.1)
    assert len(measured) >= 80


@pytest.fixture(scope="module")
def shipped():
    return {
        source.profile["model"]["name"]: source
        for source in profiles_at_hand(None, [gpu_named("h200")])
    }


def test_profiles_are_left_out_and_predicted_by_every_way(shipped, tmp_path, monkeypatch, capsys):
    """Two that ship, and those of their shapes that AIConfigurator's tables give."""
    two = [shipped["llama-3-8b"], shipped["llama-13b"]]
    monkeypatch.setattr(
        "testbed.experiments.studies.left_out.profiles_at_hand",
        lambda path, gpus: iter(two),
    )
    monkeypatch.setattr("testbed.experiments.studies.left_out.NUM_REQUESTS", 150)
    out, folder = tmp_path / "out.csv", write_every_table(tmp_path)
    call("validate costs", [str(folder), "--out", str(out)])
    output = capsys.readouterr().out
    rows = list(csv.DictReader(out.open()))
    assert len(rows) == 4 * 3  # four profiles; from two others of another model, and by a roofline
    assert {row["way"] for row in rows} == {"other model", "roofline"}
    for row in rows:
        if row["way"] == "roofline":
            assert row["source_model"] == ""
        else:
            assert {row["model"], row["source_model"]} == {"llama-3-8b", "llama-13b"}
    measured = [row for row in rows if row["measured_by"] == row["source_by"] == "measured"]
    assert len(measured) == 2
    assert all(0 < abs(float(row["latency_percent"])) < 10 for row in measured)
    ours = [abs(float(row["latency_percent"])) for row in rows if row["source_by"] == "measured"]
    assert f"{np.median(ours):.1f} ({max(ours):.1f})" in output
    toy = write_llmservingsim(tmp_path)
    (tmp_path / "meta.yaml").write_text("model: llama-3-8b\ngpu: Toy GPU\n")
    refuses(
        "tp1: ",
        call,
        "validate costs",
        [str(toy)],
    )


SCALE = np.array([1e-3, 1e-4, 1.0])  # of two times and a factor


@pytest.mark.parametrize(
    ("jacobian", "optimum", "found"),
    [
        ([[1, 0], [0, 1]], [2e-3, 3e-4], [2e-3, 3e-4]),
        ([[1, 0], [0, 1]], [2e-3, -3e-4], [2e-3, 0]),  # a time below zero is left out
        ([[1, 1], [1, 2]], [2e-3, -1e-3], [5e-4, 0]),  # and the others are fitted without it
        ([[1, 0], [0, 1]], [-1e-3, -1e-3], [0, 0]),
    ],
)
def test_descent_finds_the_least_squares_without_negative_times(jacobian, optimum, found):
    jacobian = np.block([[np.array(jacobian, float), np.zeros((2, 1))], [np.zeros(2), 1.0]])

    def at(values):
        return Point(values, jacobian @ (values - np.array([*optimum, 1.5])), jacobian)

    assert descend(at, SCALE, SCALE).values == pytest.approx([*found, 1.5], abs=1e-12)


def test_a_step_changes_the_factor_twofold_at_most():
    def at(values):
        steps.append(values[0])
        return Point(values, values - 16.0, np.ones((1, 1)))

    steps = []
    assert descend(at, np.ones(1), np.ones(1)).values == pytest.approx([16.0])
    assert steps == pytest.approx(
        [1, 2, 1.5, 1.2, 4, 3, 2.4, 8, 6, 4.8, 16, 12, 9.6, *[16] * 9]
    )  # three in vain
    endless = descend(lambda x: Point(x, 1 / x, -np.diag(x**-2.0)), np.ones(1), np.ones(1))
    assert endless.values == pytest.approx([2.0**15])  # twice as far in each of fifteen rounds


def test_standard_error_is_that_of_a_mean():
    """Four observations of one time, each off by 0.1: sqrt(0.04 / 3 / 4)."""
    errors, correlations = uncertainty(
        ["a"], np.array([0.1, -0.1, 0.1, -0.1]), np.ones((4, 1)), np.ones(1)
    )
    assert (errors, correlations) == ({"a": pytest.approx(0.0577350269)}, {})
    errors, _ = uncertainty(["a"], np.array([0.1]), np.ones((1, 1)), np.ones(1))
    assert errors == {"a": pytest.approx(0.1)}  # as if one more had been observed
    unseen = np.array(
        [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
    )  # only the second of three times moves anything
    errors, correlations = uncertainty(["a", "b", "c"], np.array([0.1, -0.1]), unseen, np.ones(3))
    assert (errors, correlations) == ({"a": 0, "b": pytest.approx(0.1), "c": 0}, {})


def test_times_with_a_correlation_above_0_9_are_inseparable():
    correlations = {("a", "b"): 0.9, ("a", "c"): -0.91, ("b", "c"): 0.95}
    fitted = Fitted(times_s={}, factor=1.0, standard_errors={}, correlations=correlations)
    assert list(fitted.alike) == [("a", "c"), ("b", "c")]
