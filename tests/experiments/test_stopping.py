"""Long work speaks, and what is stopped leaves no half folder."""

import io
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, suppress
from pathlib import Path

import pytest

from experiments.commands import progress
from experiments.paper.studies.study import Task
from experiments.runs import workers
from experiments.runs.lab import Lab
from experiments.runs.whole_files import clean_up, whole_folder

LONG = ("arrivals.duration_s=2000000", "outputs=summary")
SWEEP = ("run", "-m", "arrivals.rate=1,2", *LONG)


def started(folder, *words):
    """A command in a process of its own, once it has begun to simulate."""
    command = [sys.executable, "-m", "experiments.commands.cli", *words]
    work = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(folder.glob("runs/[0-9a-f]*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    return work


@pytest.mark.parametrize(
    ("words", "number", "code"),
    [
        (("run", *LONG), signal.SIGINT, 130),
        (("run", *LONG), signal.SIGTERM, 143),
        (SWEEP, signal.SIGINT, 130),
        ((*SWEEP, "hydra/launcher=joblib"), signal.SIGTERM, 143),
    ],
)
def test_a_stopped_run_leaves_nothing(tmp_path, words, number, code):
    work = started(tmp_path, *words)
    work.send_signal(number)
    said = work.communicate(timeout=60)[1]
    assert work.returncode == code
    assert said.strip().splitlines()[-1] in ("testbed: interrupted", "testbed: terminated")
    assert "Traceback" not in said
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "multirun.yaml"]
    assert left == []


def test_files_come_all_at_once_or_not_at_all(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "old.csv").write_text("old")
    (folder / "mine.txt").write_text("mine")
    with suppress(KeyboardInterrupt), whole_folder(folder, "last", lambda name: name == "old.csv") as new:
        (new / "a.csv").write_text("half")
        raise KeyboardInterrupt
    assert {path.name for path in tmp_path.rglob("*")} == {"run", "old.csv", "mine.txt"}
    with whole_folder(folder, "last", lambda name: name == "old.csv") as new:
        (new / "a.csv").write_text("whole")
        (new / "last").write_text("")
    assert {path.name for path in tmp_path.rglob("*")} == {"run", "a.csv", "last", "mine.txt"}


def test_what_killed_workers_leave_is_removed_and_nobody_elses(tmp_path):
    ours, other = tmp_path / f".run.{os.getpid()}-9.tmp", tmp_path / ".run.1-9.tmp"
    ours.mkdir()
    other.mkdir()
    clean_up(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [other.name]


def test_work_that_lasts_speaks(capsys):
    with progress.spoken(lambda: "half done", every_s=0.02):
        time.sleep(0.1)
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 5
    assert lines[0] == "half done, 0 s"


def test_short_work_does_not(testbed):
    assert testbed("run", "arrivals.duration_s=1", "outputs=summary")[2] == ""


def noisy(lab, number):
    time.sleep(0.05)
    return [{"number": number}]


def test_tasks_speak_and_tell_of_each_that_is_done(monkeypatch, tmp_path):
    monkeypatch.setattr(progress, "SPEAK_S", 0.02)
    told, said = [], io.StringIO()
    tasks = [Task(f"task {i}", lambda lab, i=i: noisy(lab, i)) for i in range(3)]
    with redirect_stderr(said):
        rows = workers.perform(tasks, Lab(Path(tmp_path)), 1, lambda i, found: told.append((i, found)))
    assert told == list(enumerate(rows))
    assert "1 of 3 done; running: task 1" in said.getvalue()


def test_a_reader_that_has_gone_ends_a_run_in_silence(tmp_path):
    command = [sys.executable, "-m", "experiments.commands.cli", "run", "arrivals.duration_s=5", "hydra.run.dir=run"]
    work = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    work.stdout.close()
    assert (work.stderr.read(), work.wait()) == ("", 1)
    assert (tmp_path / "run" / "summary.json").exists()
