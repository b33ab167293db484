"""Launchers give the arena's rows of one process."""

from dataclasses import replace

import pytest
from refusals import refuses

from testbed.experiments.arena import cell_tasks
from testbed.experiments.arena.games import play
from testbed.experiments.arena.rules import Rules
from testbed.experiments.arena.suites import HARD, Case, Suite
from testbed.experiments.cli.arena import arena
from testbed.experiments.runs.launchers import launched

PACKAGES = {"submitit_local": "submitit", "ray": "ray"}
SCAN = Case("scan", (f"trace={HARD}Scan",), num_requests=40)
TINY = Suite("sprint", (SCAN,), pools=(0.5,), loads=(0.8,), seeds=(0, 1))


def rows_by(launcher, folder):
    words = [f"hydra/launcher={launcher}"]
    games = play(
        ["lfu", "s3_fifo"],
        TINY,
        Rules("vllm-v1"),
        folder / launcher,
        lambda calls: cell_tasks.by_tasks(calls, lambda tasks: [*launched(words, tasks, folder)]),
    )
    assert not games.out
    return {
        (name, *place): replace(row, cpu_us=0)
        for name, cells in games.rows.items()
        for place, row in cells.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["joblib", *PACKAGES])
def test_a_launcher_gives_the_rows_of_one_process(tmp_path, monkeypatch, launcher):
    monkeypatch.setattr(cell_tasks, "PER_TASK", 5)  # three tasks
    if package := PACKAGES.get(launcher):
        pytest.importorskip(package)
    assert rows_by("basic", tmp_path) == rows_by(launcher, tmp_path)


def test_workers_that_may_start_no_processes_are_refused(tmp_path):
    refuses("hydra/launcher=dask", arena, "lfu", launcher=["hydra/launcher=dask"], runs=tmp_path)
