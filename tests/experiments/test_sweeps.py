"""Sweeps and searches run every point once, what stops leaves no half folder, and no file nearby
shadows a package.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from socket import gethostname

import pytest
import yaml

from testbed.core.model_files import shipped
from testbed.experiments.cli import exit_codes
from testbed.experiments.paper import reproduction
from testbed.experiments.runs import progress  # its patience: nothing else makes a short run speak
from testbed.experiments.runs.sweep_progress import SweepProgress
from testbed.experiments.runs.whole_files import MARK, write_json
from testbed.run import simulate as testbed_run

HERE = Path(__file__).parent
SHORT = ("arrivals.duration_s=30", "outputs=summary")
SWEEP = ("run", "-m", "policy=contiguous_max,paged", "policy.block_size=32", *SHORT)
LONG = ("arrivals.duration_s=200000", "outputs=summary")
LONG_SWEEP = ("run", "-m", "arrivals.rate=1,2", *LONG)
SHADOWS = (
    "simpy",
    "numpy",
    "omegaconf",
    "joblib",
    "json",
    "logging",
    "random",
    "pathlib",
    "traces",
    "testbed",
)
MODEL = {
    "_target_": "testbed.core.specs.ModelSpec",
    **shipped("llama-3-8b")["shape"],
    "name": "mine",
    "num_layers": 3,
}


def summaries(folder, runs="runs"):
    return {path: path.stat().st_mtime_ns for path in folder.glob(f"{runs}/[!.]*/summary.json")}


def files(folder):
    """Every file but Hydra's own note of a sweep."""
    return {
        path.name for path in folder.rglob("*") if path.is_file() and path.name != "multirun.yaml"
    }


def in_a_process(words, folder, **more):
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, **more)


def wait_until(reached, work):
    """However slow the machine is; but not for a process that has ended."""
    while not reached():
        assert work.poll() is None
        time.sleep(0.02)


def test_killed_sweep_keeps_finished_points(testbed, command, tmp_path):
    points = "run", "-m", "outputs=summary", "arrivals.duration_s=5,6"
    endless = [*command, *points[:-1], f"{points[-1]},2000000"]
    sweep = subprocess.Popen(endless, cwd=tmp_path, stdout=subprocess.DEVNULL)
    wait_until(lambda: len(summaries(tmp_path)) == 2, sweep)
    sweep.kill()
    sweep.wait()
    finished = summaries(tmp_path)
    assert all(json.loads(path.read_text())["requests"]["finished"] for path in finished)
    code, output, _ = testbed(*points[:-1], f"{points[-1]},7")
    assert (code, output.count("complete already")) == (0, 2)
    after = summaries(tmp_path)
    assert len(after) == 3
    assert finished.items() <= after.items()


def test_capacity_finds_the_rate_and_keeps_its_runs(testbed, tmp_path):
    words = [
        "policy=contiguous_max",
        "slo.ttft_s=0.5",
        "arrivals.duration_s=60",
        "--share",
        "0.9",
        "--precision",
        "0.2",
        "seed=0",
    ]
    code, output, error = testbed("capacity", *words)
    assert code == 0
    assert "one seed, whose error is not known" in output
    rate = json.loads(testbed("capacity", *words, "--json")[1])["rate"]
    tried = {
        float(r): verdict
        for r, verdict in re.findall(r"([\d.]+) req/s: +[\d.]+% inside, (\w+) 90%", error)
    }
    assert max(r for r, verdict in tried.items() if verdict == "keeps") == rate
    assert min(r for r, verdict in tried.items() if verdict == "misses") > rate
    runs = summaries(tmp_path, "runs/capacity")
    assert len(runs) == len(tried)
    assert testbed("capacity", *words) == (code, output, error)
    assert runs == summaries(tmp_path, "runs/capacity")


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "package"), [("submitit_local", "submitit"), ("ray", "ray")])
def test_sweep_runs_through_cluster_launchers(command, tmp_path, launcher, package):
    if not (
        find_spec(package)
        and find_spec("hydra_plugins")
        and find_spec(f"hydra_plugins.hydra_{package}_launcher")
    ):
        pytest.skip(f'{package} is not installed: pip install -e ".[cluster]"')
    done = in_a_process([*command, *SWEEP, f"hydra/launcher={launcher}"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(summaries(tmp_path)) == 2
    assert all(json.loads(path.read_text())["requests"]["finished"] for path in summaries(tmp_path))


@pytest.mark.parametrize(
    ("words", "number", "code"),
    [
        (("run", *LONG), signal.SIGINT, 130),
        ((*LONG_SWEEP, "hydra/launcher=joblib"), signal.SIGTERM, 143),
    ],
)
def test_interrupted_run_removes_only_its_unfinished_folder(command, tmp_path, words, number, code):
    (other := tmp_path / "runs" / ".other.1-9.tmp").mkdir(parents=True)
    (other / "half.csv").write_text("")
    options = {
        "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    }  # a background job is deaf to it
    outputs = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    work = subprocess.Popen([*command, *words], cwd=tmp_path, **outputs, **options)
    wait_until(lambda: list(tmp_path.glob("runs/.[0-9a-f]*")), work)
    work.send_signal(number)
    reported = work.communicate()[1]
    assert work.returncode == code
    said = ("testbed: interrupted", "testbed: terminated")  # joblib's tracker may warn behind it
    (line,) = (line for line in reported.splitlines() if line.startswith(said))
    assert ("the same line continues" in line) == ("-m" in words)
    assert "Traceback" not in reported
    assert files(tmp_path) == {"half.csv"}


def leave(folder, name, *, is_folder):
    """A temporary file or folder."""
    path = folder / name
    path.mkdir() if is_folder else path.touch()
    return path


@pytest.fixture
def ended():
    """The machine, and a process of it that has ended, as temporary names have them."""
    done = subprocess.Popen(["true"])
    done.wait()
    return f"@{gethostname()}@{done.pid}@0"


def test_files_of_killed_processes_are_removed_and_those_of_living_ones_stay(run, ended, tmp_path):
    left = leave(tmp_path, f".out{ended}{MARK}", is_folder=True)
    living = leave(tmp_path, f".out@{gethostname()}@{os.getpid()}@0{MARK}", is_folder=True)
    elsewhere = leave(tmp_path, f".out{ended.replace('@', '@x', 1)}{MARK}", is_folder=True)
    other = leave(tmp_path, f".other{ended}{MARK}", is_folder=True)
    file = leave(tmp_path, f".x{ended}{MARK}.json", is_folder=False)
    run("arrivals.duration_s=5")
    kept = (living, elsewhere, other)
    assert (left.exists(), *(path.exists() for path in kept)) == (False, True, True, True)
    write_json(tmp_path / "x.json", 1)
    assert not file.exists()


def test_failed_write_leaves_the_old_run_intact(run, command, tmp_path):
    old = run("arrivals.duration_s=5 outputs=full").folder
    before = {path.name: path.read_bytes() for path in old.iterdir()}
    limited = [
        "sh",
        "-c",
        'ulimit -f 16; PYTHONDONTWRITEBYTECODE=1 exec "$@"',
        "sh",
        *command,
    ]  # blocks of 512 bytes: no file larger, and no compiled module cut off
    done = in_a_process(
        [*limited, "run", "arrivals.duration_s=200", "hydra.run.dir=out", "--again"], tmp_path
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "out/requests.csv" in done.stderr
    assert {path.name: path.read_bytes() for path in old.iterdir()} == before
    assert list(tmp_path.iterdir()) == [old]


def until_printed(words, work):
    """The same work, which ends after progress with these words was printed, whenever its thread
    gets a turn.
    """

    def call(*args, **more):
        done, end_s = work(*args, **more), time.monotonic() + 300
        while words not in sys.stderr.getvalue():  # pytest's, for these tests
            assert time.monotonic() < end_s, f"no process has printed {words!r}"
            time.sleep(0.001)
        return done

    return call


def test_progress_is_printed_for_long_work_only(testbed, monkeypatch):
    assert testbed("run", "arrivals.duration_s=1", "outputs=summary")[2] == ""
    monkeypatch.setattr(progress, "REPORT_S", 1e-3)
    simulate = until_printed("s left", testbed_run.simulate_parts)
    monkeypatch.setattr(testbed_run, "simulate_parts", simulate)
    lines = testbed("run", "arrivals.duration_s=10", "outputs=summary")[2].splitlines()
    assert all(re.fullmatch(r"simulating: .* requests \(.*/s.*\), \d+ s", line) for line in lines)
    assert "s left" in lines[-1]
    save = until_printed(" left; running: drawing", reproduction.save)
    monkeypatch.setattr(reproduction, "save", save)
    testbed("reproduce", "table1", "--jobs", "1", "--out", "results")


def test_closed_output_pipe_ends_a_run_silently(command, tmp_path):
    words = [*command, "run", "arrivals.duration_s=5", "outputs=summary", "hydra.run.dir=run"]
    work = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    work.stdout.close()
    assert (work.stderr.read(), work.wait()) == ("", exit_codes.CLOSED_OUTPUT)
    assert (tmp_path / "run" / "summary.json").exists()


def installed():
    """An environment in which this source tree is as good as installed."""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return {**plain, "PYTHONPATH": str(HERE.parents[1])}


def test_plug_ins_and_models_of_the_working_folder_are_found_and_hide_no_package(command, tmp_path):
    """By the command itself and by the processes that it starts."""
    for name, text in (
        ("model/mine", yaml.safe_dump(MODEL)),
        ("server/of-mine", "defaults: [h200]\n"),
    ):
        path = tmp_path / "options" / f"{name}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (tmp_path / "beside.py").write_text("import helper\nfrom example_policy import Slabs\n")
    (tmp_path / "helper.py").write_text("")
    shutil.copy(HERE.parents[1] / "experiments" / "examples" / "example_policy.py", tmp_path)
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong file was imported')\n")
    beside = (
        "--config-dir=options",
        "model=mine",
        "policy=custom",
        "policy._target_=beside.Slabs",
        "outputs=summary",
    )
    script = [
        command[0],
        "-P",
        *command[1:],
    ]  # as the installed script, which does not look here first
    workers = ("-m", "hydra/launcher=joblib")
    done = in_a_process(
        [*script, "run", *workers, *beside, "arrivals.duration_s=5"], tmp_path, env=installed()
    )
    assert done.returncode == 0, done.stderr
    assert len(summaries(tmp_path)) == 1
    assert [line.split()[2] for line in done.stderr.splitlines() if "note:" in line] == [
        "testbed.py"
    ]


def test_deleted_working_folder_is_refused_in_one_line(command, tmp_path):
    (gone := tmp_path / "gone").mkdir()
    done = in_a_process(
        ["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", *command, "run"], gone, env=installed()
    )
    reported = (
        "testbed run: error: the working folder: has been deleted (change to one that exists)\n"
    )
    assert (done.returncode, done.stderr) == (2, reported)


def test_rejected_requests_of_a_point_are_named(testbed):
    words = [
        "run",
        "-m",
        "server.num_blocks=30,500",
        "~server.kv_memory_gib",
        "arrivals.duration_s=20",
    ]
    code, output, _ = testbed(*words)
    assert code == 0
    (line,) = [line for line in output.splitlines() if "rejected" in line]
    assert line.startswith("server.num_blocks=30: ")


def test_a_run_that_serves_nothing_says_why_in_place_of_its_latencies(testbed):
    words = ("run", "trace=random", "trace.input_len=1500", "model.max_len=1000")
    lines = testbed(*words, "arrivals.duration_s=5")[1].splitlines()
    assert sum("│ latencies" in line and "longer than" in line for line in lines) == 1
    assert not any("p99 -" in line for line in lines)


def test_a_percentile_of_few_requests_is_named_as_their_largest_value(testbed):
    """One request a second: some 20, then some 200."""
    words = ("run", "trace=random", "arrivals.rate=1", "outputs=summary")
    for more in ((), ("-m", "seed=0,1")):
        few, many = (
            sum(line.startswith("p99: of ") for line in testbed(*words, *more, of)[1].splitlines())
            for of in ("arrivals.duration_s=20", "arrivals.duration_s=200")
        )
        assert (few, many) == (1, 0)


SIZED = ("run", "-m", *SHORT, "~server.kv_memory_gib")


def test_a_sweep_with_a_point_that_fails_has_the_axis_of_all(testbed, tmp_path):
    words = (*SIZED, "server.num_blocks=900,9000")  # the second does not fit
    code, output, errors = testbed(*words)
    assert code == 1
    assert "does not fit" in errors.splitlines()[-1]
    assert "server.num_blocks" in output
    header, row = (tmp_path / "runs" / "sweep.csv").read_text().splitlines()
    assert (header.split(",")[0], row.split(",")[0]) == ("server.num_blocks", "900")


def test_runs_of_other_commands_in_the_folder_are_no_points(tmp_path):
    for name in ("ours", "theirs", "also theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").touch()
    assert "1 of 2 points" in str(SweepProgress(tmp_path, {"ours", "not yet"}, 2, 0.0))
    assert SweepProgress(tmp_path, {"ours"}, 2, time.time() + 60).num_new == 0


def test_unlike_pools_of_as_many_blocks_are_named(testbed):
    words = (*SIZED, "server.num_blocks=900")
    assert "unlike memory" in testbed.done(*words, "policy.block_size=8,16")
    assert "unlike memory" not in testbed.done(*words, "policy.block_size=16", "seed=0,1")


def test_a_capacity_says_that_its_run_is_overloaded(testbed):
    load = ("trace=random", "trace.input_len=64", "trace.output_len=200", "arrivals.duration_s=10")
    words = ("capacity", *load, "slo.ttft_s=9", "--precision", "0.5", "--seeds", "1")
    assert "overloaded" in testbed(*words)[1]


def test_a_capacity_says_that_its_runs_are_too_short(testbed):
    """However coarse the search is."""
    load = ("trace=random", "trace.input_len=64", "trace.output_len=300", "slo.ttft_s=2")
    words = ("capacity", *load, "--seeds", "1", "--low", "4", "--high", "8", "--precision", "0.1")
    short, long = (
        json.loads(testbed(*words, f"arrivals.duration_s={seconds}", "--json")[1])
        for seconds in (20, 100)
    )
    assert short["rate"] * (1 - short["filling"]) < long["rate"] < short["rate"]
    assert short["filling"] > 0.1 > 2 * long["filling"]
    words = (*words[:-1], "0.9")
    assert "no bound" in testbed(*words, "arrivals.duration_s=20")[1]
    assert "says little" in testbed(*words, "arrivals.duration_s=2")[1]
