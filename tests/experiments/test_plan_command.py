"""`testbed plan`: tables, JSON, page and figure; what it refuses; launchers and interruptions."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import time
from importlib.util import find_spec
from itertools import count

import pytest
from refusals import check_words

from testbed.experiments.plan.json_answer import PlanAnswer
from testbed.experiments.plan.rows import Row

WORKLOAD = ("trace=random", "trace.input_len=1500", "trace.output_len=16", "slo.ttft_s=1")
LOAD = (*WORKLOAD, "arrivals.duration_s=3", "arrivals.rate=4", "seed=0")
SPACE = ("model=opt-13b", "gpu=a100-40gb,a10g", "replicas=1,2")
LAUNCHED = (
    *WORKLOAD,
    *SPACE,
    "router=round_robin,fewest_requests",
    "server.num_gpus=1,2",
    "arrivals.duration_s=4",
    "--precision",
    "0.2",
    "--seeds",
    "2",
)
COMPLETE = "runs/plan/[!.]*/summary.json"  # not those of folders that are being written
PRICES = 'date = 2026-11-26\ncurrency = "EUR"\n[per_gpu_hour]\na100-40gb = 2.5\na10g = 1\n'


def in_a_process(words, folder):
    """A command's end, with what it printed."""
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=1200)


def planned(testbed, *words):
    """The answer as JSON; progress goes to standard error."""
    code, output, _ = testbed("plan", *words, "--json")
    assert code == 0
    return json.loads(output)


def test_a_plan_ranks_by_prices_and_says_what_does_not_fit(testbed, tmp_path):
    (tmp_path / "prices.toml").write_text(PRICES)
    answer = planned(testbed, *SPACE, *LOAD, "--prices", "prices.toml")
    assert answer.keys() == set(PlanAnswer.__dataclass_fields__)
    rows = answer["deployments"]
    assert all(row.keys() == set(Row.__dataclass_fields__) for row in rows)
    best = rows[0]
    assert (best["verdict"], best["hourly"], best["gpus"], answer["unit"]) == (
        "keeps",
        2.5,
        1,
        "EUR",
    )
    assert best["per_million_requests"] == pytest.approx(2.5 / (4 * 3600) * 1e6)
    limits = {row["deployment"]["gpu"]: row["limit"] for row in rows[1:]}
    assert limits == {"a100-40gb": "dearer", "a10g": "does not fit"}
    assert answer["num_simulations"] == 1
    assert (tmp_path / "runs" / "plan" / best["runs"][0] / "summary.json").is_file()


def test_a_plan_says_how_sensitive_its_cheapest_deployment_is(testbed):
    lines = planned(testbed, *SPACE, *LOAD, "--sensitivity")["lines"]
    at = next(i for i, line in enumerate(lines) if line.startswith("how sensitive, "))
    low, high = map(float, re.findall(r"[0-9.]+", lines[at + 1]))
    assert 90 <= low <= high <= 100
    assert not any("sensitive" in line for line in planned(testbed, *SPACE, *LOAD)["lines"])
    words = (*SPACE, *WORKLOAD, "arrivals.duration_s=3", "seed=0", "--precision", "0.5")
    at_capacity = planned(testbed, *words, "--sensitivity")["lines"][-1]
    low, high, *_ = map(float, re.findall(r"[0-9.]+", at_capacity))
    assert "req/s, by costs" in at_capacity
    assert 0 < low <= high


def test_each_engine_costs_what_its_own_gpus_cost(testbed, tmp_path):
    (tmp_path / "prices.toml").write_text(PRICES)
    words = ("model=qwen2.5-7b", "gpu=a100-40gb", "replicas=3", "gpu@1=a10g", *LOAD)
    pools = ("server.num_blocks=4000", "+servers.1.num_blocks=1000", "servers.1.num_gpus=2")
    answer = planned(testbed, *words, *pools, "--prices", "prices.toml")
    (row,) = answer["deployments"]
    assert (row["gpus"], row["hourly"]) == (4, 2 * 2.5 + 2 * 1)
    assert sum("a10g" in line for line in answer["lines"]) == 1


def test_clients_that_wait_for_answers_are_served_at_the_rate_of_their_answers(testbed, tmp_path):
    clients = ("arrivals=benchmark", "arrivals.num_requests=20", "arrivals.max_in_flight=2")
    words = ("model=opt-13b", "gpu=a100-40gb", "arrivals.rate=1000", "seed=0")
    (row,) = planned(testbed, *words, *WORKLOAD, *clients)["deployments"]
    summary = json.loads((tmp_path / "runs" / "plan" / row["runs"][0] / "summary.json").read_text())
    answered = summary["while_arriving"]["completed_requests_per_s"]  # the drain is no part of it
    assert row["rate"] == answered < 1000
    assert answered > summary["throughput"]["requests_per_s"]
    assert row["per_million_requests"] == pytest.approx(1 / (answered * 3600) * 1e6)
    assert row["per_gpu"] == pytest.approx(16 * answered)


def test_where_requests_wait_for_answers_the_cheaper_request_is_first(testbed):
    clients = ("arrivals=closed_loop", "arrivals.num_requests=12", "arrivals.concurrency=2")
    words = ("model=opt-13b", "scheduler.max_num_seqs=1,2", *WORKLOAD, *clients, "--seeds", "3")
    first, second = planned(testbed, *words, "trace.input_ratio=0.3")["deployments"]
    assert (first["hourly"], first["share_inside"]) == (second["hourly"], second["share_inside"])
    assert first["deployment"] == {"scheduler.max_num_seqs": "2"}
    assert first["per_million_requests"] < second["per_million_requests"]
    assert second["difference"].endswith("a million requests")


CAPACITY = (*SPACE, *WORKLOAD, "arrivals.duration_s=2", "seed=0", "--precision", "0.5")
MODES = {"a load": (*SPACE, *LOAD), "capacity": CAPACITY}


def test_a_plan_says_that_its_runs_are_too_short(testbed):
    """As `testbed capacity` does, however coarse the search is: an empty server fills for a large
    share of two seconds.
    """
    for precision in ("0.2", "1.5"):
        lines = planned(testbed, *CAPACITY[:-1], precision)["lines"]
        assert sum("short runs" in line for line in lines) == 1


ONE_LINE = r"testbed plan: error: [^\n]+\n$"


@pytest.mark.parametrize("mode", MODES)
def test_a_plan_that_cannot_keep_a_run_ranks_nothing(testbed, tmp_path, mode):
    """A file is where the folder of the cheapest deployment's run should be."""
    row = planned(testbed, *MODES[mode])["deployments"][0]
    folder = tmp_path / "runs" / "plan" / row["runs"][0]
    shutil.rmtree(folder)
    folder.write_text("not a folder")
    code, output, errors = testbed("plan", *MODES[mode])
    assert code == 2
    assert not output
    assert folder.name in errors
    assert re.search(ONE_LINE, errors)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", [0, 2, 3])
def test_a_plan_on_a_full_disk_ranks_nothing(testbed, mode, place, monkeypatch):
    calls, fsync = count(), os.fsync

    def on_a_full_disk(descriptor):
        if next(calls) >= place:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", on_a_full_disk)
    code, output, errors = testbed("plan", *MODES[mode])
    assert code == 2
    assert not output
    assert os.strerror(errno.ENOSPC) in errors
    assert re.search(ONE_LINE, errors)


def test_a_plan_says_which_deployments_are_refused(testbed):
    """Those that remain are ranked, and the answer says that it is not of all."""
    words = ("model=opt-13b", "gpu=a100-40gb", "policy=paged,prefix_caching", "swap_space_gib=1")
    code, output, _ = testbed("plan", *words, *LOAD, "policy.block_size=16,100000")
    refused = [line for line in output.splitlines() if line.startswith("incomplete: ")]
    assert code == 0
    assert len(refused) == 1


def test_a_row_of_the_page_opens_its_run(testbed, tmp_path, web_page):
    (tmp_path / "out").mkdir()
    code, output, _ = testbed(
        "plan", *SPACE, *LOAD, "--html", "out/plan.html", "--figure", "plan.png"
    )
    assert code == 0
    assert "Keep the SLO" in output
    assert (tmp_path / "plan.png").stat().st_size > 1000
    web_page.goto((tmp_path / "out" / "plan.html").as_uri())
    assert web_page.locator("table").count() == 2
    web_page.locator("tbody a").first.click()
    assert "opt-13b" in web_page.locator("main").inner_text()


def test_deployments_that_read_the_future_are_named(testbed):
    words = ("model=opt-13b", "gpu=a100-40gb", "policy=paged,contiguous_oracle", *LOAD)
    _, output, _ = testbed("plan", *words)
    named = [line for line in output.splitlines() if "reads the future" in line]
    assert len(named) == 1
    assert "contiguous_oracle reads" in named[0]


def test_an_slo_that_nothing_keeps_names_the_nearest_miss(testbed):
    impossible = [word for word in LOAD if not word.startswith("slo")]
    code, output, _ = testbed("plan", *SPACE, *impossible, "slo.ttft_s=0.2")
    assert code == 1
    assert "nothing keeps the SLO; nearest: gpu=a100-40gb replicas=2" in output
    assert "TTFT p90 is" in output


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        pytest.param("policy=no_such", "no_such", id="a policy that is unknown"),
        pytest.param("bogus=1", "bogus", id="an option that is unknown"),
        pytest.param("--share 1.5", "--share 1.5", id="a share above 1"),
        pytest.param("--prices none.toml", "none.toml", id="no file of prices"),
        pytest.param("trace.input_len=10,20", "trace.input_len=10,20", id="two workloads"),
        pytest.param("arrivals=poisson,slotted", "arrivals=poisson,slotted", id="two arrivals"),
        pytest.param("workload.num_seqs=1,2", "workload.num_seqs=1,2", id="two numbers of samples"),
        pytest.param("--html no/folder.html", "the folder no does not exist", id="no folder"),
        pytest.param("hydra/launcher=no_such", "no_such", id="a launcher that is unknown"),
    ],
)
def test_an_option_that_makes_no_plan_is_refused_in_one_line(testbed, more, reason):
    check_no_plan(testbed("plan", *SPACE, *LOAD, *more.split()), reason)


def test_what_leaves_nothing_to_compare_is_refused_in_one_line(testbed):
    check_no_plan(testbed("plan", *SPACE, "arrivals.rate=1"), "no objective")
    check_no_plan(
        testbed("plan", *SPACE, *LOAD, "--gpus", "7"), "number of GPUs, such as", expected=1
    )
    too_large = testbed("plan", "model=llama-3.1-70b", "gpu=a10g,l4", *LOAD)
    check_no_plan(too_large, "2 (does not fit, such as", expected=1)
    two_rates = testbed("plan", *SPACE, *WORKLOAD, "arrivals.rate=1,2")
    check_no_plan(two_rates, "arrivals.rate=1,2")
    check_no_plan(testbed("plan", "gpu=a10g,l4x", *LOAD), "gpu=l4x: is no option")


def check_no_plan(ended, reason, expected=2):
    code, output, error = ended
    assert (code, output) == (expected, "")
    assert reason in error.splitlines()[-1]
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "text",
    [
        "date = 2026-11-26",
        PRICES.replace("2.5", "-1"),
        PRICES.replace("a100-40gb", "h100"),
        PRICES.replace("currency", "coin"),
    ],
)
def test_prices_that_lack_something_are_refused(testbed, tmp_path, text):
    (tmp_path / "prices.toml").write_text(text)
    code, output, error = testbed("plan", *SPACE, *LOAD, "--prices", "prices.toml")
    assert (code, output) == (2, "")
    assert "prices.toml" in error.splitlines()[-1]


def test_a_file_without_prices_shows_the_keys(testbed, tmp_path):
    for text in ("hello", "per_gpu_hour = 3"):
        (tmp_path / "prices.toml").write_text(text)
        error = testbed("plan", *SPACE, *LOAD, "--prices", "prices.toml")[2]
        check_words(("date =", "currency =", "per_gpu_hour = {"), error)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local", "ray"])
def test_launchers_give_equal_tables(command, tmp_path, launcher):
    package = launcher.partition("_")[0]
    if not find_spec(f"hydra_plugins.hydra_{package}_launcher"):
        pytest.skip(f'{package} is not installed: pip install -e ".[cluster]"')
    outputs = []
    for name, words in (("here", ()), ("there", (f"hydra/launcher={launcher}",))):
        (folder := tmp_path / name).mkdir()
        done = in_a_process([*command, "plan", *LAUNCHED, *words], folder)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]


@pytest.mark.slow
def test_a_killed_plan_continues_to_an_equal_table(command, tmp_path):
    line = [*command, "plan", *LAUNCHED]
    (killed := tmp_path / "killed").mkdir()
    (whole := tmp_path / "whole").mkdir()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    work = subprocess.Popen(line, cwd=killed, **quiet)
    while len(list(killed.glob(COMPLETE))) < 5:
        assert work.poll() is None, "it ended before it was killed"
        time.sleep(0.01)
    work.send_signal(signal.SIGKILL)
    work.wait()
    there = {path: path.stat().st_mtime_ns for path in killed.glob(COMPLETE)}
    outputs = [in_a_process(line, folder) for folder in (killed, whole)]
    assert outputs[0].stdout == outputs[1].stdout != ""
    assert all(path.stat().st_mtime_ns == time_ns for path, time_ns in there.items())
