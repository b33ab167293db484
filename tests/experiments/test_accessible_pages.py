"""axe-core finds no violation in the pages of the commands and of the site, light and dark, on a
screen and on a phone.
"""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from accessibility import violations_of
from browser import PHONE, WIDE, new_tab
from test_report_page import HEAD, ROWS, png

from testbed.experiments.arena.arena_bounds import NAMES
from testbed.experiments.arena.arena_cell import Row
from testbed.experiments.arena.arena_table import page_of
from testbed.experiments.arena.games import Games
from testbed.experiments.arena.standings import standings
from testbed.experiments.cli.main import main

ROOT = Path(__file__).parents[2]
READERS = [("light", WIDE), ("dark", PHONE)]
SHORT = ("arrivals.duration_s=10", "outputs=tables")
SHARED = ("trace=chat_histories", "trace.max_prompt=2000", "model=llama-3-8b", "server=h200")
COMMANDS = {
    "hits": ("hits", *SHARED, "arrivals.duration_s=30", "--html", "hits.html"),
    "plan": (
        "plan",
        "model=opt-13b",
        "gpu=a100-40gb",
        "replicas=1,2",
        "slo.ttft_s=1",
        "arrivals.rate=1",
        "arrivals.duration_s=10",
        "--html",
        "plan.html",
    ),
    "compare": ("compare", "runs/paged", "runs/max", "--html", "compare.html"),
    "memory map": ("show", "memory", "runs/paged", "--html", "memory.html"),
    "report of a run": ("report", "runs/paged", "--html", "one.html"),
    "report of runs": ("report", "runs", "--html", "runs.html"),
    "report of a reproduction": ("report", "results", "--html", "results.html"),
}


LETTERS = """[...document.querySelectorAll('svg.chart[data-box]')]
    .filter(chart => chart.checkVisibility())
    .map(chart => [chart.getScreenCTM().a, getComputedStyle(chart.querySelector('text'))])
    .map(([scale, style]) => scale * parseFloat(style.fontSize))"""
ROW = Row(
    hits=0.5,
    computed=1000,
    idle_memory=0.1,
    ttft_p50_s=0.1,
    ttft_p99_s=0.9,
    itl_p50_s=0.01,
    itl_p99_s=0.02,
    job_s=2.0,
    goodput=4.0,
    rejected=0,
    preemptions=0,
    cpu_us=150.0,
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The folder with a page of each command."""
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as here:
        here.chdir(folder)
        here.setattr(sys, "argv", sys.argv)
        for name, policy in (("paged", "paged"), ("max", "contiguous_max")):
            words = (f"policy={policy}", *SHORT, f"hydra.run.dir=runs/{name}")
            assert main(["run", *words]) == 0
        (folder / "results").mkdir()
        (folder / "results" / "fig12.png").write_bytes(png(999))
        (folder / "results" / "scorecard.csv").write_text("\n".join([HEAD, *ROWS, ""]))
        for words in COMMANDS.values():
            assert main([*words]) == 0
    (folder / "arena.html").write_text(arena_page(), encoding="utf-8")
    return folder


def arena_page():
    """The page of games with made-up times: the bounds, and three entrants."""
    names = [*NAMES, "lfu", "fifo", "mine.py:Order"]
    cells = {
        name: {
            (f"{case}, pool 0.5, load 0.8", seed): replace(ROW, job_s=2 + place + seed / 9)
            for case in ("chat", "scan", "loop", "burst")
            for seed in (0, 1)
        }
        for place, name in enumerate(names)
    }
    about = {"suite": "made-up", "suite_hash": "0", "rules": "vllm-v1", "testbed": "0"}
    games = Games(about, {}, cells, {"cheat": "breaks the contract"})
    return page_of(games, standings(cells), 2)


def found_in(browser, address):
    """The findings in a page, by the reader's colours and width."""
    found = {}
    for scheme, width in READERS:
        tab = new_tab(browser, width, color_scheme=scheme)
        tab.goto(address)
        if violations := violations_of(tab):
            found[scheme, width] = violations
        tab.context.close()
    return found


PAGES = {**{name: words[-1] for name, words in COMMANDS.items()}, "arena": "arena.html"}


@pytest.mark.parametrize("name", PAGES)
def test_page_of_a_command_has_no_violation(browser, pages, name):
    assert found_in(browser, (pages / PAGES[name]).as_uri()) == {}


def test_no_table_is_cut_on_a_screen(browser, pages):
    cut = "[...document.querySelectorAll('.scroll')].map(it => it.scrollWidth - it.clientWidth)"
    for name in set(PAGES) - {"memory map"}:
        tab = new_tab(browser)
        tab.goto((pages / PAGES[name]).as_uri())
        assert max(tab.evaluate(cut), default=0) <= 0, name
        tab.context.close()


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_letters_of_charts_are_legible_and_no_larger_than_text(browser, pages, width):
    for name in ("hits", "plan", "report of a run", "compare"):
        tab = new_tab(browser, width)
        tab.goto((pages / PAGES[name]).as_uri())
        sizes = tab.evaluate(LETTERS)
        assert min(sizes) > 9, name
        assert max(sizes) < 16, name
        tab.context.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site."""
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    config = ("-f", "experiments/site/mkdocs.yml", "-d", str(folder))
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", *config]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def address(site):
    """The address of the served site."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.slow
def test_no_page_of_the_site_has_a_violation(browser, site, address):
    names = sorted(path.parent.relative_to(site).as_posix() for path in site.rglob("index.html"))
    assert len(names) > 30
    found = {name: found_in(browser, f"{address}/{name}/") for name in names}
    assert {name: violations for name, violations in found.items() if violations} == {}
