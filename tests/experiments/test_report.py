"""`testbed report` and `testbed derive-profile`."""

import json
import re
import sys

import pytest
from browser import CHROMIUM, Browser

from experiments.commands.cli import dispatch


def test_a_page_of_a_reproduction_is_self_contained(testbed, tmp_path):
    assert testbed("reproduce", "table1", "--out", "out", "--jobs", "1")[0] == 0
    assert testbed("run", "arrivals.duration_s=10", "cost=profile", "cost.path=h200-opt-13b-tp1", "server=h200",
                   "hydra.run.dir=run")[0] == 0  # fmt: skip
    code, output, _ = testbed("report", "out", "run", "--out", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert (code, output) == (0, "report: page.html\n")
    assert "kv_slots" in page
    assert "NVIDIA H200" in page
    assert "_target_: testbed.cost.profile.ProfileCost" in page
    assert page.count("data:image/png;base64,") == 4
    assert not re.search(r'(?:src|href)="(?!data:)', page)


@pytest.fixture(scope="module")
def page_path(tmp_path_factory):
    """The page of a small sweep and of a run with plots."""
    folder = tmp_path_factory.mktemp("sweep")
    axes = ("policy=paged,contiguous_max", "arrivals.rate=0.5,1,2")
    with pytest.MonkeyPatch.context() as here:
        here.chdir(folder)
        here.setattr(sys, "argv", sys.argv)
        assert dispatch(["run", "-m", *axes, "arrivals.duration_s=10", "outputs=summary"]) == 0
        assert dispatch(["run", "arrivals.duration_s=10", "arrivals.rate=4", "hydra.run.dir=runs/whole"]) == 0
        assert dispatch(["report", "runs", "--out", "page.html"]) == 0
    return folder / "page.html"


@pytest.fixture
def sweep(page_path):
    """Its text."""
    return page_path.read_text()


def test_a_folder_of_runs_has_figures_first_and_says_what_each_run_was(sweep):
    assert 'name="viewport"' in sweep
    assert "<h2>7 runs in runs, by policy and arrivals.rate" in sweep
    assert sweep.index("<figure>") < sweep.index("<table>")
    assert sweep.count("data:image/png;base64,") == 1 + 3
    assert "<h3>Paged, 4" in sweep
    assert "Paged (blocks of 16), opt-13b on 1 x a100-40gb; sharegpt, 4 req/s, 10 s; MixedPrefill" in sweep
    texts = re.findall(r'<img[^>]* alt="([^"]*)"', sweep)
    assert len(set(texts)) == 4
    assert texts[0].startswith("Mean normalized latency and batched requests over arrivals.rate. Latency of Contig")
    assert all(re.search(r"\d", text) and len(text) > 60 for text in texts)
    assert sweep.count('<div class="scroll" role="region" tabindex="0" aria-label=') == sweep.count("<table>")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [1400, 390])
def test_only_its_tables_are_wider_than_a_screen(page_path, width):
    browser = Browser()
    try:
        browser.open(page_path.as_uri())
        browser.resize(width)
        assert browser.value("document.documentElement.scrollWidth") == width
        images = browser.value("[...document.images].map(i => [i.complete && i.naturalWidth > 0, i.clientWidth])")
        assert all(loaded and shown <= width for loaded, shown in images)
        tables = browser.value("[...document.querySelectorAll('.scroll')].map(s => s.scrollWidth > s.clientWidth)")
        assert width == 1400 or any(tables), "the table of all runs scrolls by itself"
    finally:
        browser.close()


def test_a_reproduction_says_published_values_in_words_too(testbed, tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    row = "fig13a,opt-13b sharegpt 2 req/s,vllm,mean_batched_requests,30.42,30.5236,+0.3%,calibrate,price,,"
    names = "figure,setting,system,quantity,published,simulated,error,role,part,margin,verdict"
    (folder / "scorecard.csv").write_text(f"{names}\n{row}\n")
    (folder / "fig13.png").write_bytes(b"a picture")
    (folder / "fig1.png").write_bytes(b"another")
    assert testbed("report", "results", "--out", "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    said = "opt-13b sharegpt 2 req/s vllm, mean batched requests: 30.52 (published 30.42)."
    assert f'alt="Figure 13: average number of batched requests, the published bar beside ours. {said}"' in page
    assert page.index("Figure 1, right") < page.index("Figure 13:") < page.index("<table>")


def test_a_folder_without_results_is_named(testbed, tmp_path):
    (tmp_path / "empty").mkdir()
    code, _, error = testbed("report", "empty")
    assert code == 2
    assert error.startswith("testbed report: error: empty: holds neither")


def test_a_derived_profile_says_so_and_prices_a_run(testbed, tmp_path):
    code, _, _ = testbed("derive-profile", "--from", "h200-opt-13b-tp1", "--to", "a100-40gb", "--out", "a100.json")
    assert code == 0
    assert json.loads((tmp_path / "a100.json").read_text())["fingerprint"]["source"] == "derived"
    run = ("run", "cost=profile", "cost.path=a100.json", "arrivals.duration_s=10", "outputs=summary")
    assert testbed(*run, "hydra.run.dir=run")[0] == 0
    code, _, error = testbed(*run, "model=opt-66b")
    assert code == 2
    assert "the profile is of opt-13b" in error
