"""The GPU's side of the pairs, in one process: a line of figures for every run, and its raw rows in
one archive.
"""

import statistics
import sys
import tarfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from testbed.core.request import Request, without_answers
from testbed.kernels.engine.engine_iterations import served_decodes
from testbed.kernels.engine.gpu_engine import GpuEngine
from testbed.kernels.engine.pairs.paired_runs import (
    FIELDS,
    FIGURES,
    KEYS,
    MACHINE,
    WORK,
    Missing,
    Pair,
    Stage,
    figures,
)
from testbed.kernels.engine.records import Iteration, write_csv, write_json, write_run
from testbed.kernels.engine.served_run import fingerprint_of, make_engine, on_the_device_of
from testbed.run.build import Setup, build
from testbed.run.config import RunConfig

CONTEXT, NUM_STEPS = (
    256,
    48,
)  # tokens and steps of the sequences that software times are measured on
ARCHIVE, MEASURED, SOFTWARE = "runs.tar", "measured.csv", "software.csv"


class Machine:
    """A loaded model whose pools and captured graphs serve one run after the other."""

    def __init__(self, stage: Stage) -> None:
        self.values = MACHINE.config(stage)
        self.values |= {"engine": {**stage.engine, "warm": stage.warm}, "window_s": None}
        self.setup = self._built()
        self._first = make_engine(self.setup)

    def engine(self, setup: Setup | None = None) -> GpuEngine:
        """An engine for a setup whose pools fit into the machine's; without one, for the machine's
        own.
        """
        return on_the_device_of(self._first, setup or self._built())

    def _built(self) -> Setup:
        return build(RunConfig.from_values(self.values))


def run_pairs(pairs: list[Pair], stage: Stage, out: Path, limit_s: float) -> Missing:
    """Run them in order until limit_s seconds have passed. Every run leaves its rows before the
    next.
    """
    out.mkdir(parents=True, exist_ok=True)
    if stage.engine["device"] == "cpu":
        torch.set_num_threads(1)  # of tiny models
    begun, missing = time.monotonic(), Missing([], [])
    loaded = Machine(stage)
    write_json(out / "fingerprint.json", fingerprint_of(loaded.setup))
    measure_software(loaded.engine, out / SOFTWARE, stage)
    print(f"{time.monotonic() - begun:.1f} s: loaded", flush=True)
    rows: list[list[Any]] = []
    for pair in pairs:
        write_csv(out / MEASURED, (*KEYS, *FIGURES, *WORK), rows)
        if time.monotonic() - begun > limit_s:
            missing.late.append(pair.name)
            continue
        try:
            rows.append(run_pair(pair, stage, loaded, out))
            print(f"{time.monotonic() - begun:6.1f} s", *rows[-1], flush=True)
        except Exception:
            missing.failed.append(pair.name)
            traceback.print_exc(file=sys.stdout)
    write_csv(out / MEASURED, (*KEYS, *FIGURES, *WORK), rows)
    return missing


def run_pair(pair: Pair, stage: Stage, loaded: Machine, out: Path) -> list[Any]:
    """Run a pair, append its raw rows to the archive; returns its row."""
    values, folder = pair.config(stage), out / "run" / pair.name
    setup = build(RunConfig.from_values(values))
    engine = loaded.engine(setup)
    records = engine.serve(without_answers(setup.workload))
    summary = write_run(
        folder,
        records,
        setup.pool.num_slots,
        setup.window_ps,
        setup.slo,
        setup.workload.rows.sessions,
    )
    write_json(folder / "config.yaml", values)  # JSON is YAML
    write_json(folder / "summary.json", summary)
    with tarfile.open(out / ARCHIVE, "a") as archive:
        archive.add(folder, pair.name)
    values = figures(setup, records.recorder, summary)
    rounded = [
        values[name] if not isinstance(values[name], float) else f"{values[name]:.6g}"
        for name in FIGURES
    ]
    return [pair.series.name, pair.load, pair.seed, *rounded, *work(records.iterations)]


def work(iterations: list[Iteration]) -> list[Any]:
    """WORK: seconds of the GPU by kind of iteration, and of software, the time between its work."""
    kinds = {"swaps": 0.0, "prompts": 0.0, "decodes": 0.0}
    for iteration in iterations:
        kinds[
            "swaps" if iteration.work.moves else "prompts" if iteration.work.prefill else "decodes"
        ] += iteration.gpu_s
    duration_s = sum(iteration.duration_s for iteration in iterations)
    times = (
        duration_s,
        kinds["decodes"],
        kinds["prompts"],
        kinds["swaps"],
        duration_s - sum(kinds.values()),
    )
    return [len(iterations), *(f"{x:.5f}" for x in times)]


def measure_software(engine: Callable[[], GpuEngine], path: Path, stage: Stage) -> None:
    """Write the software times, by the number of running requests: an iteration's time beyond the
    GPU's work for as many sequences of one request each, so that drawing tokens for several samples
    counts too.

    A row has the median decode iteration of a batch of equal sequences, served by a fresh engine
    before any pair runs.
    """
    rows, gpu_s = [], dict[int, float]()
    for num_requests, num_seqs in stage.batches:
        requests = [
            Request(
                i, arrival_ps=0, prompt_len=CONTEXT, output_len=NUM_STEPS + 1, num_seqs=num_seqs
            )
            for i in range(num_requests)
        ]
        plain = served_decodes(engine(), requests)
        if num_seqs == 1:
            gpu_s[num_requests] = statistics.median(it.gpu_s for it in plain)
        times = [
            (
                it.duration_s,
                it.gpu_s,
                it.host_s,
                it.duration_s - (it.gpu_s if num_seqs == 1 else gpu_s[num_requests * num_seqs]),
            )
            for it in plain
        ]
        medians = [round(1e6 * statistics.median(column), 1) for column in zip(*times, strict=True)]
        rows.append([num_requests, num_seqs, len(plain), *medians])
        print("software", *rows[-1], flush=True)
    write_csv(path, FIELDS, rows)
