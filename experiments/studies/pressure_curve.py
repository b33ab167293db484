"""Predictions of a vLLM under memory pressure, made before it serves: drawn loads, then intervals,
then the logs beside them.

    python -m testbed.experiments.studies.pressure_curve draw LENGTHS.csv.gz LOADS.json
    python -m testbed.experiments.studies.pressure_curve predict LOADS.json PROFILE.json OUT.json
    python -m testbed.experiments.studies.pressure_curve compare OUT.json LOGS_FOLDER

`draw` fixes the loads by a seed: pools, rates in multiples of the rate at which the pool is
saturated by a profile, and the requests of each. `predict` takes a profile of the host's sweeps; no
log has a part in it. LOGS_FOLDER has NAME-1/requests.jsonl.gz, NAME-2 ... of each load.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from cyclopts import App

from testbed.core.errors import InputError
from testbed.core.request import PS, Rows, Workload
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.whole_files import write_json
from testbed.experiments.studies.predictions import (
    digest,
    predicted,
    show_compared,
    write_predictions,
)
from testbed.run.config import RunConfig
from testbed.run.parts import Part
from testbed.run.simulate import run
from testbed.study.cost_spread import rule
from testbed.traces.vllm_log import VllmLog
from testbed.vllm.releases import MEASURED

SEED = 20261128
POOLS = (2000, 3000, 4000)  # blocks, the null block included
BELOW, ABOVE = (0.8, 1.0), (1.0, 1.5)  # of the saturated rate
NUM_BELOW = 2
OTHERS = ((8000, 0.5), (8000, 1.0), (2000, 0.5), (4000, 0.5), (2000, 2.0), (8000, 1.5))
SPAN_S = 60.0
SATURATING = 2000  # requests that come at once
LONGEST = 2048  # tokens of a request
H100 = "h100-80gb"
SERVER = (
    "+system=vllm-v1",
    "policy=paged",
    "policy.watermark=0",
    "policy.block_size=16",
    "model=llama-3.1-8b",
    "trace=random",
    "outputs=summary",
    "scheduler.max_num_seqs=1024",
    "scheduler.max_num_batched_tokens=8192",
)
METRICS = ("e2e_s", "ttft_s", "ttft_p50_s", "tpot_s", "preemptions")
ABOUT = ("blocks", "rate", "factor", "in_question")

app = App(help=__doc__)


class Load(NamedTuple):
    """One workload. factor: its rate over the saturated one of its pool (requests/s); in_question:
    it is one of the drawn ones.
    """

    name: str
    blocks: int
    factor: float
    rate: float
    in_question: bool
    arrival_s: list[float]
    prompt_len: list[int]
    output_len: list[int]

    @property
    def workload(self) -> Workload:
        rows = Rows(np.array(self.prompt_len), np.array(self.output_len))
        return Workload(rows, np.rint(np.array(self.arrival_s) * PS).astype(np.int64))


@app.command
def draw(
    lengths: Path,
    out: Path,
    *,
    seed: int = SEED,
    span_s: float = SPAN_S,
    profile: str = MEASURED,
    server: str = H100,
    others: bool = True,
) -> None:
    """Draw the loads by the seed, and write them.

    span_s: of arrivals below the saturated rate; above it, until as much has been served.
    others: also the loads of OTHERS, that draw the curve and are not in question.
    """
    rng = np.random.default_rng(seed)
    table = pd.read_csv(lengths).to_numpy()[:, :2]
    table = np.maximum(table[table.sum(axis=1) <= LONGEST], 1)
    configs = {blocks: config_of(blocks, profile, server) for blocks in sorted({*POOLS, 8000})}
    knees = {blocks: _saturated(config, table, rng) for blocks, config in configs.items()}
    asked = [(*pair, True) for pair in _drawn(rng)]
    asked += [(*pair, False) for pair in OTHERS] if others else []
    loads = [
        _load(rng, table, name, blocks, factor, knees[blocks], span_s, in_question=in_question)
        for name, (blocks, factor, in_question) in zip(_names(asked), asked, strict=True)
    ]
    write_json(out, {"seed": seed, "knees": knees, "loads": [load._asdict() for load in loads]})
    for load in loads:
        print(f"{load.name}: {load.rate:.2f} requests/s, {len(load.arrival_s)} requests")


def _drawn(rng: np.random.Generator) -> list[tuple[int, float]]:
    """Two loads of each pool; NUM_BELOW of all are below the saturated rate."""
    pools = [int(blocks) for blocks in rng.permutation([*POOLS, *POOLS])]
    factors = [*rng.uniform(*BELOW, NUM_BELOW), *rng.uniform(*ABOVE, len(pools) - NUM_BELOW)]
    return list(zip(pools, map(float, factors), strict=True))


def _names(asked: Sequence[tuple[int, float, bool]]) -> list[str]:
    """The pool and the factor of each, with as many digits as tell all of them apart."""
    for digits in count(2):
        names = [f"s{blocks}-x{factor:.{digits}f}" for blocks, factor, _ in asked]
        if len(set(names)) == len(names):
            break
    return names


def _load(
    rng: np.random.Generator,
    table: np.ndarray,
    name: str,
    blocks: int,
    factor: float,
    knee: float,
    span_s: float,
    *,
    in_question: bool,
) -> Load:
    rate = factor * knee
    num_requests = round(min(rate, knee) * span_s)
    rows = table[rng.integers(0, len(table), num_requests)]
    arrival_s = np.cumsum(rng.exponential(1 / rate, num_requests)).round(6)
    lengths = rows[:, 0].tolist(), rows[:, 1].tolist()
    return Load(name, blocks, factor, rate, in_question, arrival_s.tolist(), *lengths)


def _saturated(config: RunConfig, table: np.ndarray, rng: np.random.Generator) -> float:
    """Requests/s from the first tenth to eight tenths of the ends, if all come at once."""
    rows = table[rng.integers(0, len(table), SATURATING)]
    workload = Workload(Rows(rows[:, 0], rows[:, 1]), np.zeros(SATURATING, dtype=np.int64))
    result = run(replace(config, trace=Part(workload)))
    ends = np.sort(result.requests.finish_s.to_numpy(float))
    first, last = SATURATING // 10, SATURATING * 8 // 10
    return float((last - first) / (ends[last] - ends[first]))


def config_of(blocks: int, profile: str, server: str = H100) -> RunConfig:
    """The server with `blocks` blocks."""
    pool = (f"server={server}", f"server.num_blocks={blocks}")
    costs = (*pool, "cost=profile", f"cost.path={profile}")
    return configured([*SERVER, *costs])


@app.command
def predict(
    loads: Path, profile: Path, out: Path, *, processes: int = 1, server: str = H100
) -> None:
    """Predict each load by the profile, with its interval, and write them with the time and the
    digests of what they rest on.
    """
    drawn = read_loads(loads)
    with ProcessPoolExecutor(processes) as pool:
        found = list(pool.map(partial(_predicted, profile=str(profile), server=server), drawn))
    write_predictions(
        out,
        loads,
        profile_sha256=digest(profile),
        rule=rule(config_of(POOLS[0], str(profile), server)),
        predictions={
            load.name: {name: getattr(load, name) for name in ABOUT} | prediction
            for load, prediction in zip(drawn, found, strict=True)
        },
    )


def read_loads(path: Path) -> list[Load]:
    """The loads that `draw` has written."""
    return [Load(**load) for load in json.loads(path.read_text(encoding="utf-8"))["loads"]]


def _predicted(load: Load, profile: str, server: str) -> dict[str, dict[str, float]]:
    config = config_of(load.blocks, profile, server)
    return predicted(replace(config, trace=Part(load.workload)), _figures)


def _figures(summary: Mapping[str, Any], slowness: float) -> dict[str, float]:
    """By METRICS. slowness: the run's unit of time, in the usual one."""
    return {
        "e2e_s": slowness * summary["e2e_s"]["mean"],
        "ttft_s": slowness * summary["ttft_s"]["mean"],
        "ttft_p50_s": slowness * summary["ttft_s"]["p50"],
        "tpot_s": slowness * summary["tpot_s"]["mean"],
        "preemptions": float(sum(summary["preemptions"].values())),
    }


@app.command
def compare(predictions: Path, logs: Path) -> None:
    """Print what was measured, the mean of a load's repeats, beside what was predicted."""
    show_compared(predictions, METRICS, partial(measured, logs))


def measured(logs: Path, name: str) -> list[dict[str, float]]:
    """The figures of each repeat."""
    folders = sorted(logs.glob(f"{name}-[0-9]*"))
    return [_of_log(folder / "requests.jsonl.gz") for folder in folders]


def _of_log(path: Path) -> dict[str, float]:
    """The times from when the client asks, as a simulated request arrives, to the engine's tokens.

    The engine takes a request in between two iterations only: its own `queued_ts` is after that
    wait.
    """
    log = VllmLog(str(path))
    times = log.times
    return {
        "e2e_s": float(times.e2e_s.mean()),
        "ttft_s": float(times.ttft_s.mean()),
        "ttft_p50_s": float(np.median(times.ttft_s)),
        "tpot_s": float(times.tpot_s.mean()),
        "preemptions": float(log.preemptions or 0),
    }


if __name__ == "__main__":
    try:
        app()
    except InputError as error:
        sys.exit(f"error: {error}")
