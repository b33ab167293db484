"""`testbed report`."""

import csv
import re
import sys

import pytest

from testbed.experiments.commands.cli import main


def test_report_of_a_reproduction_is_self_contained(testbed, tmp_path):
    testbed.done("reproduce", "table1", "--out", "out", "--jobs", "1")
    assert testbed("run", "arrivals.duration_s=10", "cost=profile", "cost.path=h200-opt-13b-tp1", "server=h200",
                   "hydra.run.dir=run")[0] == 0  # fmt: skip
    code, output, _ = testbed("report", "out", "run", "--out", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert (code, output) == (0, "report: page.html\n")
    assert "opt-13b a100-40gb x1: kv slots" in page
    assert "NVIDIA H200" in page
    assert "_target_: testbed.cost.profile.ProfileCost" in page
    assert page.count("data:image/png;base64,") == 1
    assert page.count('role="img"') == 3
    assert not re.search(r'(?:src|href)="(?!data:)', page)


@pytest.fixture(scope="module")
def page_path(tmp_path_factory):
    """The page of a small sweep and of a run with plots."""
    folder = tmp_path_factory.mktemp("sweep")
    axes = ("policy=paged,contiguous_max", "arrivals.rate=1,2")
    with pytest.MonkeyPatch.context() as here:
        here.chdir(folder)
        here.setattr(sys, "argv", sys.argv)
        assert main(["run", "-m", *axes, "arrivals.duration_s=10", "outputs=summary"]) == 0
        assert main(["run", "arrivals.duration_s=10", "arrivals.rate=4", "hydra.run.dir=runs/whole"]) == 0
        assert main(["report", "runs", "--out", "page.html"]) == 0
    return folder / "page.html"


@pytest.fixture
def sweep(page_path):
    """Its text."""
    return page_path.read_text()


def test_report_of_a_sweep_starts_with_figures(sweep):
    assert 'name="viewport"' in sweep
    assert "<h2>5 runs in runs, by policy and arrivals.rate" in sweep
    assert sweep.index("<figure>") < sweep.index("<table>")
    assert "<h3>Paged, rate 4" in sweep
    assert "opt-13b on 1 x a100-40gb (a100-40gb-x1); 15,728 slots" in sweep
    labels = re.findall(r'role="img"\s+aria-label="([^"]*)"', sweep)
    assert labels[0] == "Norm. latency: Norm. latency (s/token) over Request rate (req/s), ContiguousMax, Paged"
    assert labels[-3:] == [
        "KV cache by kind: KV cache (% of slots) over Time (s), Token states, Reservation, Internal frag., Free",
        "Requests by state: Requests over Time (s), running",
        "Normalized latency, distribution: Requests (%) over Normalized latency (s/token), requests",
    ]
    assert sweep.count('<div class="scroll" role="region" tabindex="0" aria-label=') == sweep.count("<table>")


@pytest.fixture
def opened(browser, page_path):
    """A browser that shows it."""
    browser.open(page_path.as_uri())
    return browser


def test_a_chart_shows_the_values_under_the_pointer(opened, page_path):
    shown = opened.value("""(() => {
      const chart = document.querySelector("svg.chart"), box = chart.getBoundingClientRect();
      const clientX = box.left + box.width * 429 / 440, clientY = box.top + box.height / 2;
      chart.dispatchEvent(new PointerEvent("pointermove", {clientX, clientY}));
      return chart.parentElement.querySelector("output").textContent;
    })()""")
    with (page_path.parent / "runs" / "sweep.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["arrivals.rate"] == "2"]
    numbers = {row["policy"]: float(row["normalized_latency_s_per_token_mean"]) for row in rows}
    found = {curve: float(value) for curve, value in re.findall(r"(\w+) ([\d.]+)(?:,|$)", shown)}
    assert found["Paged"] == pytest.approx(numbers["paged"], rel=0.02)
    assert found["ContiguousMax"] == pytest.approx(numbers["contiguous_max"], rel=0.02)


@pytest.mark.parametrize("width", [1400, 390])
def test_only_report_tables_exceed_the_screen_width(opened, width):
    opened.resize(width)
    assert opened.value("document.documentElement.scrollWidth") == width
    charts = opened.value("[...document.querySelectorAll('svg.chart')].map(one => one.getBoundingClientRect().right)")
    assert charts
    assert all(right <= width for right in charts)
    tables = opened.value("[...document.querySelectorAll('.scroll')].map(s => s.scrollWidth > s.clientWidth)")
    assert width == 1400 or any(tables), "the table of all runs scrolls by itself"


def test_report_lists_published_values_as_text(testbed, tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    row = "fig13a,opt-13b sharegpt 2 req/s,vllm,mean_batched_requests,30.42,30.5236,+0.3%,calibrate,price,,"
    names = "figure,setting,system,quantity,published,simulated,error,role,part,margin,verdict"
    (folder / "scorecard.csv").write_text(f"{names}\n{row}\n")
    (folder / "fig13.png").write_bytes(b"a picture")
    (folder / "fig1.png").write_bytes(b"another")
    testbed.done("report", "results", "--out", "page.html")
    page = (tmp_path / "page.html").read_text()
    reported = "opt-13b sharegpt 2 req/s vllm: mean batched requests: 30.52 (published 30.42)."
    assert f'alt="Figure 13: average number of batched requests, the published bar and ours. {reported}"' in page
    assert page.index("Figure 1:") < page.index("Figure 13:") < page.index("<table>")
