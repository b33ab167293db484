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
from experiments.runs.engine_run import run_on_gpu
from experiments.runs.identity import plain
from experiments.runs.overload import Overloaded, WatchfulRecorder
from experiments.runs.whole_files import write_json, write_text, write_with
from testbed.metrics import summarize
from testbed.sim.recorder import Recorder
from testbed.sim.simulation import simulate

SUMMARY = "summary.json"
STOPPED = "stopped_at_latency"
PROFILE = "cost_profile"
COUNTERS = "counters"


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
    summary = summarize(recorder, setup.pool.num_slots, setup.window_ps)
    counters = dict(setup.scheduler.policy.counters())
    extra = {STOPPED: overloaded, PROFILE: getattr(setup.cost, "fingerprint", None), COUNTERS: counters}
    return Run(recorder, {**summary, **extra}, wall_s)


def run_into(config: DictConfig, folder: Path, *, show: bool = False) -> dict[str, Any]:
    """Run a config and write its folder; summary.json comes last, so that its presence means: complete."""
    if config.get("engine") is not None:
        return run_on_gpu(config, folder)
    setup = build(config)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SUMMARY).unlink(missing_ok=True)
    result = run(setup, show=show)
    write_text(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(plain(config)), resolve=True))
    if config.outputs == "full":
        write_everything(folder, setup, result)
    write_json(folder / "timing.json", {"wall_s": result.wall_s})
    write_json(folder / SUMMARY, result.summary)
    return result.summary


def write_everything(folder: Path, setup: Setup, result: Run) -> None:
    """The tables of requests and of iteration spans, and the plots drawn from them."""
    from experiments.runs import plots
    from experiments.runs import run_tables as tables

    requests = tables.requests(result.recorder)
    spans = tables.spans(result.recorder)
    for name, table in (("requests", requests), ("iterations", spans)):
        write_with(folder / f"{name}.csv", lambda path, table=table: table.to_csv(path, index=False))
    plots.draw_all(folder, requests, spans, setup.pool.num_slots)


def complete(folder: Path) -> dict[str, Any] | None:
    """The summary in a folder whose run is complete, else None; one that lacks a key is another version's, or cut."""
    try:
        value = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) and keys_of_every_summary() <= value.keys() else None


@cache
def keys_of_every_summary() -> frozenset[str]:
    """What a run without any request writes, every run does."""
    return frozenset(summarize(Recorder(), num_slots=1)) | {STOPPED, PROFILE, COUNTERS}
