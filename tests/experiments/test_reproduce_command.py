"""`testbed reproduce`: tables, figures and the scorecard, from the embedded length models."""

import pandas as pd
import pytest

from experiments.paper.embedded_lengths import EXPECTED, PICKLE, remarks


@pytest.fixture
def card(testbed, tmp_path):
    def reproduce(*figures):
        code, output, error = testbed("reproduce", *figures, "--out", "out", "--jobs", "1")
        assert code == 0, error
        assert "Scorecard" in output
        return pd.read_csv(tmp_path / "out" / "scorecard.csv", keep_default_na=False)

    return reproduce


def error_points(card):
    return card["error"].str.removesuffix(" points").astype(float).abs()


def test_table1_comes_out_within_2_percent(card, tmp_path):
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


def test_fig2_is_close_with_embedded_lengths_and_is_not_run_twice(card, tmp_path):
    rows = card("fig2")
    assert len(rows) == 14
    assert error_points(rows).max() < 2.5
    missed = rows[rows["verdict"] == "miss"][["figure", "setting", "system", "quantity"]]
    assert set(missed.itertuples(index=False, name=None)) == EXPECTED
    runs = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").glob("*/summary.json")}
    drawn = {path: path.read_bytes() for path in (tmp_path / "out").glob("fig2.*")}
    assert len(runs) == 4
    assert len(drawn) == 3
    card("fig2")
    assert all(path.stat().st_mtime_ns == time for path, time in runs.items())
    assert all(path.read_bytes() == content for path, content in drawn.items())


@pytest.mark.slow
def test_fig13_is_close_with_embedded_lengths(card):
    rows = card("fig13")
    scored = rows[rows["error"] != ""]
    errors = scored["error"].str.removesuffix("%").astype(float).abs()
    assert len(scored) == 8
    assert errors[scored["figure"] == "fig13a"].max() < 8
    assert errors[scored["figure"] == "fig13b"].max() < 12
    assert set(rows[rows["role"] == "calibrate"]["verdict"]) == {""}


def card_of(*misses):
    names = ("figure", "setting", "system", "quantity", "verdict")
    return pd.DataFrame([dict(zip(names, (*key, "miss"), strict=True)) for key in misses], columns=names)


def test_a_newcomer_is_told_what_to_think():
    expected, other = ("fig2", "opt-13b sharegpt", "orca-pow2", "token_states"), ("fig13a", "s", "vllm", "batch")
    said = "\n".join(remarks(card_of(expected, other, ("fig12", "s", "", "ratio")), (), ["fig2"]))
    assert "Expected to miss with them, and inside with the paper's: fig2 orca-pow2 token_states." in said
    assert "Not expected to miss, so something has changed: fig13a vllm batch." in said
    assert "by the paper's lengths alone, and by REPRODUCING.md: fig12 ratio." in said
    assert f"python -m traces.artifact_lengths {PICKLE} sharegpt.csv" in said
    assert list(remarks(card_of(other), ["sharegpt"], ["fig2"])) == [
        "REPRODUCING.md says of every miss what is known about it."
    ]
    assert list(remarks(card_of(), ["sharegpt"], ["fig2"])) == []
