"""One run: simulate a config, and leave a folder behind that says everything about it."""

import json
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments.commands.progress import watched
from experiments.runs.build import Setup, build
from experiments.runs.description import ID, RUN
from experiments.runs.engine_run import run_on_gpu
from experiments.runs.identity import plain, run_id
from experiments.runs.overload import Overloaded, WatchfulRecorder
from experiments.runs.whole_files import SUMMARY, whole_folder, write_json, write_text
from testbed.metrics import summarize
from testbed.sim.columns import request_columns, span_columns
from testbed.sim.recorder import Recorder
from testbed.sim.simulation import simulate

STOPPED = "stopped_at_latency"
PROFILE = "cost_profile"
COUNTERS = "counters"
COLUMNS = Path(__file__).with_name("COLUMNS.md")
FILES = {
    "config.yaml", "requests.csv", "iterations.csv", "timing.json", "memory.png", "latency_cdf.png", "batch.png",
    "report.html", COLUMNS.name, SUMMARY,
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What a simulation gave. wall_s is the time of the event loop alone."""

    recorder: Recorder
    summary: dict[str, Any]
    wall_s: float


def run(setup: Setup, *, show: bool = False) -> Run:
    """Simulate; with `show` a run of more than a second shows its progress."""
    limit = setup.stop_at_latency
    recorder = Recorder() if limit is None else WatchfulRecorder(setup.workload, limit)
    start_ps, stop_ps = setup.window_ps or (None, None)
    options: dict[str, Any] = {} if stop_ps is None else {"marks_ps": [start_ps], "stop_ps": stop_ps}
    overloaded = None
    with watched(recorder, len(setup.workload), show):
        began = time.perf_counter()
        try:
            simulate(
                setup.workload, setup.scheduler, setup.cost, setup.model.max_len,
                recorder=recorder, fast_forward=setup.fast_forward, beams=setup.beams, **options,
            )  # fmt: skip
        except Overloaded as stopped:
            overloaded, recorder.end_ps = stopped.at_least, stopped.now_ps
        wall_s = time.perf_counter() - began
    summary = summarize(recorder, setup.pool.num_slots, setup.window_ps, setup.slo)
    counters = dict(setup.scheduler.policy.counters())
    extra = {STOPPED: overloaded, PROFILE: getattr(setup.cost, "fingerprint", None), COUNTERS: counters}
    return Run(recorder, {RUN: dict(setup.description), **summary, **extra}, wall_s)


def run_into(config: DictConfig, folder: Path, *, show: bool = False) -> dict[str, Any]:
    """Run a config and write its folder, as a whole or not at all, in place of an older run's files."""
    if config.get("engine") is not None:
        return run_on_gpu(config, folder)
    setup = build(config)
    result = run(setup, show=show)
    summary = {**result.summary, RUN: {**result.summary[RUN], ID: run_id(config)}}
    with whole_folder(folder, SUMMARY, is_ours) as new:
        write_text(new / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(plain(config)), resolve=True))
        if config.outputs == "full":
            write_everything(new, setup, result)
        write_json(new / "timing.json", {"wall_s": result.wall_s})
        write_json(new / SUMMARY, summary)
    return summary


def write_everything(folder: Path, setup: Setup, result: Run) -> None:
    """The tables of requests and of iteration spans, what their columns mean, and the plots drawn from them."""
    from experiments.runs import plots
    from experiments.runs.run_tables import write_csv

    requests, spans = request_columns(result.recorder), span_columns(result.recorder)
    write_csv(folder / "requests.csv", requests)
    write_csv(folder / "iterations.csv", spans)
    write_text(folder / COLUMNS.name, COLUMNS.read_text(encoding="utf-8"))
    plots.draw_all(folder, requests, spans, setup.pool.num_slots)


def is_ours(name: str) -> bool:
    """Whether a file of this name belongs to a run, and so not to the run that comes after it."""
    return name in FILES or name.startswith(("memory_map.", "timeline."))


def complete(folder: Path) -> dict[str, Any] | None:
    """The summary in a folder whose run is complete, else None; one that lacks a key is another version's, or cut."""
    try:
        value = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) and keys_of_every_summary() <= value.keys() else None


def holds(folder: Path, config: DictConfig) -> dict[str, Any] | None:
    """The summary in a folder that holds this very run, complete; else None."""
    summary = complete(folder)
    return summary if summary is not None and summary[RUN].get(ID) == run_id(config) else None


@cache
def keys_of_every_summary() -> frozenset[str]:
    """What a run without any request writes, every run does."""
    return frozenset(summarize(Recorder(), num_slots=1)) | {RUN, STOPPED, PROFILE, COUNTERS}
