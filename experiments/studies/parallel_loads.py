"""Loads of the GPU engine on several GPUs, predicted before they are served.

    python -m testbed.experiments.studies.parallel_loads draw LOADS.json --seed 74 --gpus 4
    python -m testbed.experiments.studies.parallel_loads predict LOADS.json PROFILES OUT.json
    python -m testbed.experiments.studies.parallel_loads serve LOADS.json SERVED
    python -m testbed.experiments.studies.parallel_loads compare OUT.json SERVED

`draw` fixes the loads by a seed: of each model one that is planned in turn and one planned ahead.
`predict` takes a profile of each model (`testbed gpu calibrate --system engine`) from the folder
PROFILES, as MODEL.json; no load has a part in it. `serve` runs them on the GPUs of the machine.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from cyclopts import App

from testbed.core.errors import InputError
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.whole_files import SUMMARY, write_json
from testbed.experiments.studies.predictions import (
    digest,
    predicted,
    show_compared,
    write_predictions,
)
from testbed.run.config import RunConfig
from testbed.study.cost_spread import rule
from testbed.study.sensitivity import figures_of

# By number of GPUs and model: blocks of 16 tokens, and the lowest and highest rate, requests/s.
MODELS = {
    2: {"opt-13b": (6500, 1.5, 6.0), "llama-3-8b": (61204, 3.0, 12.0)},
    4: {"opt-66b": (2500, 1.0, 4.0), "llama-3-70b": (8000, 1.5, 6.0)},
}
PLANNED = {
    "in turn": (),
    "ahead": (
        "scheduler=vllm_v1_async",
        "scheduler.ignore_eos=true",
        "scheduler.max_num_batched_tokens=2560",
    ),
}
LIMITS = {"tpot_mean_s": 0.05, "ttft_p50_s": 0.10}  # largest errors
METRICS = ("tpot_mean_s", "ttft_p50_s", "ttft_mean_s", "preemptions")

app = App(name="parallel_loads", help=__doc__)


class Load(NamedTuple):
    """One run: its folder's name, its model, and its words of `testbed run` without the server's
    GPUs, the engine and the costs.
    """

    name: str
    model: str
    words: list[str]


@app.command
def draw(out: Path, *, seed: int, gpus: int, seconds: int = 25) -> None:
    """Draw rates and seeds, and write the loads. gpus: that serve each; seconds: of arrivals."""
    rng, pairs = np.random.default_rng(seed), product(MODELS[gpus], PLANNED)
    loads = [_drawn(rng, gpus, model, planned, seconds) for model, planned in pairs]
    write_json(out, {"seed": seed, "loads": [load._asdict() for load in loads]})
    for load in loads:
        print(load.name, *load.words)


def _drawn(rng: np.random.Generator, num_gpus: int, model: str, planned: str, seconds: int) -> Load:
    num_blocks, *rates = MODELS[num_gpus][model]
    rate = float(np.exp(rng.uniform(*np.log(rates))))
    words = [
        f"model={model}",
        f"server.num_gpus={num_gpus}",
        f"server.num_blocks={num_blocks}",
        "~server.kv_memory_gib",
        "swap_space_gib=0",
        "trace=sharegpt",
        f"arrivals.duration_s={seconds}",
        f"arrivals.rate={rate:.2f}",
        f"seed={int(rng.integers(10**6))}",
        *PLANNED[planned],
    ]
    return Load(f"{model}-{planned.replace(' ', '-')}-{rate:.2f}", model, words)


def read_loads(path: Path) -> list[Load]:
    """The loads that `draw` has written."""
    return [Load(**load) for load in json.loads(path.read_text(encoding="utf-8"))["loads"]]


@app.command
def predict(loads: Path, profiles: Path, out: Path, *, server: str) -> None:
    """Predict each load whose model has a profile, with its interval, and write them with the time
    and the digests of what they rest on. server: the GPU, by its name in `testbed list server`.
    """
    drawn = [load for load in read_loads(loads) if (profiles / f"{load.model}.json").is_file()]
    used = {load.model: (profiles / f"{load.model}.json").resolve() for load in drawn}
    configs = {load.name: config_of(load, str(used[load.model]), server) for load in drawn}
    write_predictions(
        out,
        loads,
        server=server,
        profiles_sha256={model: digest(path) for model, path in used.items()},
        predictions={
            name: {"rule": rule(config), **predicted(config)} for name, config in configs.items()
        },
    )


def config_of(load: Load, profile: str, server: str) -> RunConfig:
    """The simulation of a load by a profile."""
    costs = ("cost=profile", f"cost.path={profile}")
    return configured([f"server={server}", *load.words, *costs])


@app.command
def serve(loads: Path, out: Path, *, server: str, limit_s: float = 600.0) -> None:
    """Serve each load that the folder lacks, in a process of its own; none begins after limit_s."""
    out.mkdir(parents=True, exist_ok=True)
    begun_s = time.monotonic()
    for load in read_loads(loads):
        if (out / load.name).exists() or time.monotonic() - begun_s > limit_s:
            continue
        words = [f"server={server}", *load.words, "engine=gpu", f"hydra.run.dir={out / load.name}"]
        done = subprocess.run([sys.executable, "-m", "testbed.experiments.cli.main", "run", *words])
        print(
            f"{load.name}: exit {done.returncode}, {time.monotonic() - begun_s:.0f} s", flush=True
        )


@app.command
def compare(predictions: Path, served: Path) -> None:
    """Print what was measured beside what was predicted."""

    def measured(name: str) -> list[dict[str, float]]:
        path = served / name / SUMMARY
        if not path.is_file():
            return []
        return [figures_of(json.loads(path.read_text(encoding="utf-8")))]

    show_compared(predictions, METRICS, measured, _verdict)


def _verdict(metric: str, ours: float, repeats: Sequence[float]) -> str:
    limit = LIMITS.get(metric)
    if limit is None:
        return ""
    return "within" if abs(ours / repeats[0] - 1) <= limit else "beyond"


if __name__ == "__main__":
    try:
        app()
    except InputError as error:
        sys.exit(f"error: {error}")
