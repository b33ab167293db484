"""`testbed reproduce`: tables, figures and the scorecard, from the embedded length models."""

import json

import pandas as pd
import pytest

from testbed.experiments.paper.scorecard import PICKLE, remarks


@pytest.fixture
def card(testbed, tmp_path):
    def reproduce(*figures):
        output = testbed.done("reproduce", *figures, "--out", "out", "--jobs", "1")
        assert "Scorecard" in output
        return pd.read_csv(tmp_path / "out" / "scorecard.csv", keep_default_na=False)

    return reproduce


def error_points(card):
    return card["error"].str.removesuffix(" points").astype(float).abs()


def test_table1_is_within_2_percent(card, tmp_path):
    rows = card("table1")
    assert list(rows.columns[:11]) == [
        "figure", "setting", "system", "quantity", "published", "simulated", "error",
        "role", "part", "margin", "verdict",
    ]  # fmt: skip
    slots = rows[rows["quantity"] == "kv_slots"]
    assert list(slots["simulated"].astype(float)) == [15728, 9552, 60064]
    assert set(slots["verdict"]) == {"pass"}
    assert set(rows[rows["role"] == "input"]["verdict"]) == {""}
    assert {path.suffix for path in (tmp_path / "out").glob("table1.*")} == {".csv", ".png", ".pdf"}


def test_fig2_is_close_reuses_finished_runs_and_has_a_column_of_the_gpu_of_a_profile(card, tmp_path):
    both = card("table1", "fig2", "--profile", "h200-llama-13b-tp1")
    there = both.set_index("figure")["simulated on h200"]
    assert set(there["table1"]) == {""}  # arithmetic, no costs
    assert (there["fig2"].astype(float) != both.set_index("figure")["simulated"]["fig2"].astype(float)).any()
    assert (tmp_path / "out" / "h200" / "fig2.png").is_file()
    summaries = [json.loads(path.read_text()) for path in (tmp_path / "out" / "runs").glob("*/summary.json")]
    costs = {summary["run"]["cost"] for summary in summaries}
    assert any("measured on NVIDIA H200" in cost and "software time of sosp23" in cost for cost in costs)
    rows = card("fig2")
    assert len(rows) == 14
    assert error_points(rows).max() < 2.5
    missed = rows[rows["verdict"] == "miss"][["figure", "setting", "system", "quantity"]]
    place = ("fig2", "opt-13b sharegpt")  # inside with the paper's lengths
    assert set(missed.itertuples(index=False, name=None)) == {
        (*place, "orca-max", "internal_fragmentation"), (*place, "orca-pow2", "token_states"),
        (*place, "orca-oracle", "reservation"),
    }  # fmt: skip
    runs = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").glob("*/summary.json")}
    drawn = {path: path.read_bytes() for path in (tmp_path / "out").glob("fig2.*")}
    assert len(runs) == 8  # of two GPUs
    assert len(drawn) == 3
    card("fig2")
    assert all(path.stat().st_mtime_ns == time for path, time in runs.items())
    assert all(path.read_bytes() == content for path, content in drawn.items())


@pytest.mark.slow
def test_fig13_is_close_with_embedded_lengths(card):
    rows = card("fig13")
    scored = rows[rows["error"] != ""]
    errors = scored["error"].str.removesuffix("%").astype(float).abs()
    assert len(scored) == 10
    assert errors[scored["figure"] == "fig13a"].max() < 8
    assert errors[scored["figure"] == "fig13b"].max() < 12
    assert set(rows[rows["role"] == "calibrate"]["verdict"]) == {""}


def card_of(*misses):
    names = ("figure", "setting", "system", "quantity", "verdict", "cause")
    return pd.DataFrame([dict(zip(names, (*key, "miss", "why"), strict=True)) for key in misses], columns=names)


def test_remarks_give_causes_or_how_to_get_the_lengths():
    other = ("fig13a", "s", "vllm", "batch")
    reported = "\n".join(remarks(card_of(other, ("fig12", "s", "", "ratio")), (), ["fig2"]))
    assert "by the paper's lengths, and by REPRODUCING.md: fig13a vllm: batch; fig12 ratio." in reported
    assert f"testbed import-lengths {PICKLE} sharegpt.csv" in reported
    assert list(remarks(card_of(other), ["sharegpt"], ["fig2"])) == ["fig13a vllm: batch: why"]
    assert list(remarks(card_of(), ["sharegpt"], ["fig2"])) == []
    assert list(remarks(card_of(), [], ["tiers"])) == []  # judges no published number
