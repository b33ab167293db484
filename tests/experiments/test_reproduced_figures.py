"""Figures of the paper that need no simulation, drawn again; `testbed plot`; unknown names."""

import csv
import shutil
import sys
from unittest import mock

import pytest
from refusals import check_words

from testbed.experiments.cli.main import main


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """The folder of both, made once."""
    folder = tmp_path_factory.mktemp("reproduced") / "results"
    with mock.patch.object(sys, "argv", sys.argv):
        assert main(["reproduce", "table1", "fig11", "--out", str(folder), "--jobs", "1"]) == 0
    return folder


@pytest.fixture
def results(testbed, reproduced, tmp_path):
    """A copy in the folder of the test."""
    return shutil.copytree(reproduced, tmp_path / "results")


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_figure_has_a_table_and_two_pictures(results):
    assert {path.name for path in results.iterdir()} == {
        "scorecard.csv",
        *(f"{name}.{kind}" for name in ("table1", "fig11") for kind in ("csv", "pdf", "png")),
    }


def test_scorecard_of_the_paper_s_arithmetic(results):
    """800 KiB a token of OPT-13B: 2 x 40 layers x 5,120 x 2 bytes; 1.5625 GiB of 2,048 tokens."""
    card = {
        (row["figure"], row["setting"], row["quantity"]): row
        for row in table(results / "scorecard.csv")
    }
    token = card["sec3", "opt-13b", "kv_bytes_per_token"]
    assert float(token["simulated"]) == 2 * 40 * 5120 * 2 / 1024
    request = card["sec3", "opt-13b max_len 2048", "kv_bytes_per_request"]
    assert float(request["simulated"]) == 2048 * 800 / 2**20
    slots = card["table1", "opt-13b a100-40gb x1", "kv_slots"]
    assert float(slots["simulated"]) == pytest.approx(12 * 2**30 / (800 * 1024), abs=16)
    judged = [row for row in card.values() if row["role"] == "predict"]
    assert [row["verdict"] for row in judged] == ["pass"] * 5


def test_mean_lengths_are_close_to_the_published_ones(results):
    means = {
        (row["setting"], row["quantity"]): (float(row["simulated"]), float(row["published"]))
        for row in table(results / "scorecard.csv")
        if row["figure"] == "fig11"
    }
    assert len(means) == 6
    for place, (simulated, published) in means.items():
        assert simulated == pytest.approx(published, rel=0.04), place


@pytest.mark.parametrize(
    ("size", "suffix"), [("7x3", "svg"), ("0.5x50", "png"), ("7.25x3.125", "pdf")]
)
def test_a_figure_is_drawn_again_in_a_size_and_a_kind(testbed, results, tmp_path, size, suffix):
    output = testbed.done("plot", "table1", "results", "--out", f"t.{suffix}", "--size", size)
    assert f"t.{suffix}" in output
    assert (tmp_path / f"t.{suffix}").stat().st_size > 500


@pytest.mark.parametrize("size", ["7", "7x", "x7", "0x7", "0.4x9", "9x0.49", "7x99", "50.1x9"])
def test_sizes_beyond_half_an_inch_and_fifty_are_refused(testbed, results, size):
    error = testbed.refused("plot", "table1", "results", "--size", size)
    check_words((f"--size {size}", "0.5 to 50 inches", "7x3.5"), error)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        pytest.param(
            ("plot", "table1", "results", "--out", "t"),
            ("--out t", ".pdf, .png, .svg"),
            id="no kind",
        ),
        pytest.param(
            ("plot", "table1", "results", "--out", "t.txt"),
            (".txt", ".pdf, .png, .svg"),
            id="a text",
        ),
        pytest.param(("plot", "table2", "results"), ("'table2'", "table1, fig1"), id="table 2"),
        pytest.param(
            ("plot", "fig12", "results"),
            ("results/fig12.csv", "testbed reproduce fig12"),
            id="a figure that was not reproduced",
        ),
        pytest.param(("reproduce", "fig99"), ("'fig99'", "table1, fig1"), id="figure 99"),
        pytest.param(
            ("reproduce", "table1", "--lengths", "none.csv"), ("none.csv",), id="no such file"
        ),
    ],
)
def test_figures_and_files_that_are_not_there_are_refused(testbed, results, words, parts):
    check_words(parts, testbed.refused(*words))
