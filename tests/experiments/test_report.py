"""The page of `testbed report` in a real browser; its text is in the transcripts."""

import csv
import re
import sys

import pytest
from browser import PHONE, WIDE

from testbed.experiments.cli.main import main


@pytest.fixture(scope="module")
def page_path(tmp_path_factory):
    """The page of a small sweep and of a run with plots."""
    folder = tmp_path_factory.mktemp("sweep")
    axes = ("policy=paged,contiguous_max", "arrivals.rate=1,2")
    with pytest.MonkeyPatch.context() as here:
        here.chdir(folder)
        here.setattr(sys, "argv", sys.argv)
        assert main(["run", "-m", *axes, "arrivals.duration_s=10", "outputs=summary"]) == 0
        assert (
            main(["run", "arrivals.duration_s=10", "arrivals.rate=4", "hydra.run.dir=runs/whole"])
            == 0
        )
        assert main(["report", "runs", "--html", "page.html"]) == 0
    return folder / "page.html"


@pytest.fixture
def opened(web_page, page_path):
    """A tab that shows it."""
    web_page.goto(page_path.as_uri())
    return web_page


def test_a_chart_shows_the_values_under_the_pointer(opened, page_path):
    shown = opened.evaluate("""(() => {
      const chart = document.querySelector("svg.chart[data-box]");
      const box = chart.getBoundingClientRect();
      const clientX = box.left + box.width * 429 / 440, clientY = box.top + box.height / 2;
      chart.dispatchEvent(new PointerEvent("pointermove", {clientX, clientY}));
      return chart.parentElement.querySelector("output").textContent;
    })()""")
    with (page_path.parent / "runs" / "sweep.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["arrivals.rate"] == "2"]
    numbers = {row["policy"]: float(row["normalized_latency_s_per_token_mean"]) for row in rows}
    value_of = {
        curve: float(value) for curve, value in re.findall(r"([a-z][a-z ]*) ([\d.]+)(?:,|$)", shown)
    }
    assert value_of["paged"] == pytest.approx(numbers["paged"], rel=0.02)
    assert value_of["contiguous max"] == pytest.approx(numbers["contiguous_max"], rel=0.02)


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_only_report_tables_exceed_the_screen_width(opened, width):
    assert opened.evaluate("document.documentElement.scrollWidth") == width
    charts = opened.evaluate(
        "[...document.querySelectorAll('svg.chart')].map(one => one.getBoundingClientRect().right)"
    )
    assert charts
    assert all(right <= width for right in charts)
    tables = opened.evaluate(
        "[...document.querySelectorAll('.scroll')].map(s => s.scrollWidth > s.clientWidth)"
    )
    assert width == WIDE or any(tables), "the table of all runs scrolls by itself"
