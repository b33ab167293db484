"""`testbed compare` and `testbed report`: names of runs, what differs, one table on the screen, in
the CSV and on the page.
"""

import csv
import re
import shutil
import sys
from contextlib import chdir
from pathlib import Path
from unittest import mock

import pytest
from refusals import check_words
from tiny_run import tiny_overrides

from testbed.experiments.cli.main import main


@pytest.fixture(scope="module")
def made_pair(tmp_path_factory):
    """The folders of two runs that differ in their policy and their objective, made once."""
    made = tmp_path_factory.mktemp("pair")
    with chdir(made), mock.patch.object(sys, "argv", sys.argv):
        tiny = tiny_overrides(Path("tiny.csv"), blocks=10)
        for folder, word in (("small", "slo.ttft_s=0.1"), ("max", "policy=contiguous_max")):
            assert main(["run", *tiny, word, f"hydra.run.dir={folder}"]) == 0
    return made


@pytest.fixture
def pair(testbed, tiny, made_pair, tmp_path):
    """A copy of both in the folder of the test."""
    for name in ("small", "max"):
        shutil.copytree(made_pair / name, tmp_path / name)
    return "small", "max"


def test_comparison_lists_what_differs_and_every_number_once(testbed, pair, tmp_path):
    output = testbed.done("compare", *pair, "--csv", "c.csv")
    differing = output.partition("What differs in the configs")[2].partition("Main numbers")[0]
    assert re.findall(r"(?m)^│ ([\w.]+) +│", differing) == [
        "policy",
        "policy.watermark",
        "slo.ttft_s",
    ]
    check_words(("all runs serve the same requests", "paged", "contiguous max"), output)
    with (tmp_path / "c.csv").open() as file:
        rows = {(row["group"], row["quantity"], row["run"]): row for row in csv.DictReader(file)}
    ours, theirs = (rows["throughput", "requests", name] for name in pair)
    expected = 100 * (float(theirs["value"]) / float(ours["value"]) - 1)
    assert float(theirs["change"]) == pytest.approx(expected)
    assert (theirs["change_unit"], theirs["reference"]) == ("%", "small")
    assert f"{expected:+.1f}%" in output
    assert (ours["change"], ours["reference"]) == ("", "")


def test_folders_named_by_ids_are_called_by_what_distinguishes_them(testbed, tiny, tmp_path):
    """The seed of the beams follows from the run's, and is no second difference."""
    testbed.done("run", "-m", *tiny, "seed=0,1", "outputs=summary", "hydra.sweep.dir=sweep")
    folders = [str(path) for path in (tmp_path / "sweep").glob("*/")]
    output = testbed.done("compare", *folders)
    differing = output.partition("What differs in the configs")[2].partition("Main numbers")[0]
    assert re.findall(r"(?m)^│ ([\w.]+) +│", differing) == ["seed"]
    for line in (r"seed 0: .*folder: .*/sweep/\w{16}$", r"seed 1: .*folder: .*/sweep/\w{16}$"):
        assert re.search(f"(?m)^{line}", output)


def test_equal_runs_are_said_to_be_equal(testbed, tiny):
    for folder in ("first", "second"):
        testbed.done("run", *tiny, f"hydra.run.dir={folder}")
    output = testbed.done("compare", "first", "second")
    assert "The configs are the same." in output
    assert "The runs are equal" in output
    assert "Main numbers" not in output


def test_numbers_that_are_the_same_are_shown_on_request(testbed, pair):
    def quantities(*words):
        return set(re.findall(r"(?m)^│ ([^│]+?) +│", testbed.done("compare", *pair, *words)))

    hidden = quantities("--all") - quantities()
    assert "requests, arrived (count)" in hidden
    assert quantities() < quantities("--all")


def test_page_of_a_comparison_has_both_runs_and_its_curves(testbed, pair, tmp_path):
    testbed.done("compare", *pair, "--html", "c.html", "--figure", "c.svg")
    page = (tmp_path / "c.html").read_text()
    check_words(("small", "max", "TTFT by time of arrival", "KV cache", "policy.watermark"), page)
    assert page.count('class="chart"') >= 8
    assert (tmp_path / "c.svg").read_text().count("<path") > 10


def test_runs_have_the_names_given_on_the_command_line(testbed, pair):
    output = testbed.done("compare", "a=small", "b=max")
    check_words(("a: policy: paged", "b: policy: contiguous max"), output)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        pytest.param(("small",), ("small", "a single run", "second folder"), id="one run"),
        pytest.param(
            ("small", "small", "--figure", "x.png"),
            ("small", "is the name of two runs", "name them"),
            id="one folder twice",
        ),
        pytest.param(
            ("x=small", "x=max"), ("x", "is the name of two runs", "name them"), id="one name twice"
        ),
    ],
)
def test_runs_without_names_of_their_own_are_refused(testbed, pair, words, parts):
    check_words(parts, testbed.refused("compare", *words))


def text_of(page):
    """The text of a page, without tags, styles and scripts."""
    page = re.sub(r"(?s)<style>.*?</style>|<script>.*?</script>", "", page)
    return " ".join(re.sub(r"<[^>]+>", " ", page.replace("<wbr>", "")).split())


def test_report_of_runs_names_them_by_the_options_that_change_results(testbed, tiny, tmp_path):
    for name, words in (
        ("b", ("policy=paged", "seed=10", "arrivals.speedup=2")),
        ("a", ("policy=contiguous_max", "seed=9")),
        ("c", ("policy=paged", "seed=9")),
    ):
        testbed.done("run", *tiny, *words, "outputs=tables", f"hydra.run.dir=many/{name}")
    testbed.done("report", "many", "--html", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "3 runs in many, by policy and arrivals.speedup" in text_of(page)
    head = re.search(r"(?s)<thead>(.*?)</thead>", page)[1]
    columns = [text_of(cell) for cell in re.findall(r"(?s)<th.*?</th>", head)]
    assert columns[:2] == ["policy", "arrivals.speedup"]  # a replay draws nothing by the seed
    assert len(re.findall(r'<section class="card"', page)) == 3


def test_report_of_runs_names_those_that_are_equal(testbed, tiny, tmp_path):
    for name, word in (
        ("a", "policy=contiguous_max"),
        ("b", "seed=1"),
        ("c", "policy.watermark=0.02"),
    ):
        testbed.done("run", *tiny, word, "outputs=tables", f"hydra.run.dir=many/{name}")
    testbed.done("report", "many", "--html", "page.html")
    (equal,) = re.findall(r"Equal in every number: (.*?)\.<", (tmp_path / "page.html").read_text())
    assert equal.count(";") == 1


def test_a_folder_of_runs_and_a_file_are_refused_with_the_way_out(testbed, pair, tmp_path):
    check_words(("several runs", "./*/"), testbed.refused("compare", "."))
    (tmp_path / "sweep.csv").write_text("policy\n")
    check_words(("sweep.csv", "is a file"), testbed.refused("compare", *pair, "sweep.csv"))


def test_folder_without_results_is_refused(testbed, tmp_path):
    (tmp_path / "empty").mkdir()
    error = testbed.refused("report", "empty")
    check_words(("empty", "neither scorecard.csv nor summary.json", "give a folder"), error)
