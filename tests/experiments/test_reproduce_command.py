"""`testbed reproduce`: tables, figures and the scorecard, from the embedded length models."""

import pandas as pd
import pytest


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
