"""Finished runs simulated again with several seeds, so that their differences have intervals."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.experiments.look.compare.finished_run import FinishedRun
from testbed.experiments.runs.points import SEED, Point, Setting, settings
from testbed.experiments.runs.progress import left, status_line
from testbed.experiments.runs.run_folder import read_config, run_into
from testbed.run.config import RunConfig

RUN_AXIS = "run"


def on_seeds(runs: Sequence[FinishedRun], num_seeds: int, folder: Path) -> list[Setting]:
    """A setting for each run: its configuration with the seeds 0 to num_seeds - 1.

    Runs that are complete below `folder` are reused. Raises InputError for fewer than two runs or
    seeds, and for a run of the GPU engine.
    """
    configs = {run.name: _config_of(run) for run in runs}
    if len(configs) < 2 or num_seeds < 2:
        raise InputError(
            key="--seeds",
            value=num_seeds,
            problem=f"differences need two seeds of two runs, and there are {len(configs)} runs",
            remedy="give a second folder, and --seeds 2 or more",
        )
    points = list[Point]()
    total, began = len(configs) * num_seeds, time.monotonic()

    def progress() -> str:
        rest = left(len(points), total, time.monotonic() - began)
        return f"{len(points)} of {total} runs done{rest}"

    with status_line(progress):
        for point in _points(configs, num_seeds, folder):
            points.append(point)
    return settings(points)


def with_seed(config: RunConfig, seed: int) -> RunConfig:
    """The configuration with another seed, also of the parts that take the run's own: routers,
    beams, acceptance. A part whose seed is another one keeps it.
    """

    def changed(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {
            key: seed if key == SEED and inner == config.seed else changed(inner)
            for key, inner in value.items()
        }

    return RunConfig.from_values(changed(config.values))


def _config_of(run: FinishedRun) -> RunConfig:
    if run.folder is None:
        raise InputError(
            key=run.name, problem="has no folder, whose configuration could be run again"
        )
    if run.on_gpu:
        raise InputError(
            key=run.name,
            problem="was served by the engine on a GPU, so it is not simulated with other seeds",
            remedy="leave --seeds out",
        )
    return read_config(run.folder, run.plug_ins)


def _points(configs: dict[str, RunConfig], num_seeds: int, folder: Path) -> Iterator[Point]:
    for name, config in configs.items():
        for seed in range(num_seeds):
            stored = run_into(with_seed(config, seed), folder)
            yield Point({RUN_AXIS: name, SEED: str(seed)}, stored.summary, stored.folder.name)
