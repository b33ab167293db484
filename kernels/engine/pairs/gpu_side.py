"""The GPU's side of the pairs, in one process: a line of figures for every run, and its raw rows in
one archive.
"""

import sys
import tarfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from testbed.kernels.engine.gpu_engine import GpuEngine
from testbed.kernels.engine.pairs.paired_runs import (
    FIGURES,
    KEYS,
    MACHINE,
    Missing,
    Pair,
    Stage,
    figures,
)
from testbed.kernels.engine.records import write_csv, write_json
from testbed.kernels.engine.served_run import (
    fingerprint_of,
    make_engine,
    on_the_device_of,
    serve_into,
)
from testbed.run.build import Setup, build
from testbed.run.config import RunConfig

ARCHIVE, MEASURED = "runs.tar", "measured.csv"


def largest_setup(stage: Stage) -> Setup:
    """The run whose pools and captured graphs serve those of all pairs."""
    engine = {**stage.engine, "warm": stage.warm}
    values = MACHINE.config(stage) | {"engine": engine, "window_s": None}
    return build(RunConfig.from_values(values))


def run_pairs(pairs: list[Pair], stage: Stage, out: Path, limit_s: float) -> Missing:
    """Run them in order until limit_s seconds have passed. Every run leaves its rows before the
    next.
    """
    out.mkdir(parents=True, exist_ok=True)
    if stage.engine["device"] == "cpu":
        torch.set_num_threads(1)  # of tiny models
    begun, missing = time.monotonic(), Missing([], [])
    largest = largest_setup(stage)
    loaded = make_engine(largest)
    write_json(out / "fingerprint.json", fingerprint_of(largest))
    print(f"{time.monotonic() - begun:.1f} s: loaded", flush=True)
    rows: list[list[Any]] = []
    for pair in pairs:
        write_csv(out / MEASURED, (*KEYS, *FIGURES), rows)
        if time.monotonic() - begun > limit_s:
            missing.late.append(pair.name)
            continue
        try:
            rows.append(run_pair(pair, stage, loaded, out))
            print(f"{time.monotonic() - begun:6.1f} s", *rows[-1], flush=True)
        except Exception:
            missing.failed.append(pair.name)
            traceback.print_exc(file=sys.stdout)
    write_csv(out / MEASURED, (*KEYS, *FIGURES), rows)
    return missing


def run_pair(pair: Pair, stage: Stage, loaded: GpuEngine, out: Path) -> list[Any]:
    """Run a pair on the device of a loaded engine, append its raw rows to the archive; returns its
    row.
    """
    values, folder = pair.config(stage), out / "run" / pair.name
    setup = build(RunConfig.from_values(values))
    engine = on_the_device_of(loaded, setup)
    summary = serve_into(folder, setup, engine)
    write_json(folder / "config.yaml", values)  # JSON is YAML
    write_json(folder / "summary.json", summary)
    with tarfile.open(out / ARCHIVE, "a") as archive:
        archive.add(folder, pair.name)
    found = figures(setup, engine.records.recorder, summary)
    rounded = [f"{value:.6g}" if isinstance(value, float) else value for value in found.values()]
    return [pair.series.name, pair.load, pair.seed, *rounded]
