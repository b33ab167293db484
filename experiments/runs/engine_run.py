"""A run by the engine on a GPU: the same config, the same folder."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from experiments.runs.config_checks import check_options, check_values
from experiments.runs.description import ID, RUN, describe
from experiments.runs.identity import plain, run_id
from experiments.runs.machine import make_cost, make_machine
from experiments.runs.pool import make_pool
from experiments.runs.whole_files import SUMMARY, write_json
from testbed.core.errors import InputError


def run_on_gpu(config: DictConfig, folder: Path) -> dict[str, Any]:
    """Serve the config's workload in real time and write its folder; returns the summary."""
    values = plain(config)
    check_options(values)
    check_values(values)
    model, server = make_machine(config)
    pool = make_pool(config, model, server)
    try:
        from kernels.engine.config import make_run
    except ImportError as error:
        raise InputError(
            f"engine=gpu needs the package {error.name}: install torch and CuPy, or leave it out"
        ) from None
    cost = make_cost(config, model, server)
    run = make_run(values, cost=cost)
    measured = run.carry_out(folder)
    told = describe(values, model, server, pool, run.engine.scheduler, cost, ())
    summary = {RUN: {**told, ID: run_id(config)}, **measured}
    write_json(folder / SUMMARY, summary)
    if config.outputs == "full":
        _draw(folder, pool.num_slots)
    return summary


def _draw(folder: Path, num_slots: int) -> None:
    import pandas as pd

    from experiments.runs import plots

    requests = pd.read_csv(folder / "requests.csv", keep_default_na=True)
    plots.draw_all(folder, requests, pd.read_csv(folder / "iterations.csv"), num_slots)
