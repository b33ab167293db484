"""The GPU's side of the pairs, in one process; every run appends its raw rows to one archive."""

import sys
import tarfile
import time
import traceback
from pathlib import Path

import torch

from testbed.build import build
from testbed.config import RunConfig
from testbed.kernels.engine.bench import free, undisturbed
from testbed.kernels.engine.pairs.plan import Pair, Stage
from testbed.kernels.engine.pairs.software import measure_software
from testbed.kernels.engine.run_folder import write_json
from testbed.kernels.engine.serve import architecture, engine_options, make_engine, make_weights, serve_into
from testbed.kernels.engine.weights import Weights

ARCHIVE = "pairs.tar.gz"


def run_pairs(pairs: list[Pair], stage: Stage, out: Path, limit_s: float) -> list[str]:
    """Run them model by model; returns the names of those without a result."""
    (out / "runs").mkdir(parents=True, exist_ok=True)
    if stage.engine["device"] == "cpu":
        torch.set_num_threads(1)  # of tiny models
    begun, left, weights, model = time.monotonic(), [pair.name for pair in pairs], None, ""
    for pair in pairs:
        if time.monotonic() - begun > limit_s:
            break
        try:
            if pair.model != model:
                weights, model = None, pair.model  # the old ones go first
                free()
                weights = prepared(pair, stage, out / "runs")
            run_pair(pair, stage, weights, out / "runs", begun)
            left.remove(pair.name)
        except Exception:
            traceback.print_exc(file=sys.stdout)
        free()
        with tarfile.open(out / ARCHIVE, "w:gz") as archive:
            archive.add(out / "runs", "pairs")
    return left


def prepared(pair: Pair, stage: Stage, runs: Path) -> Weights:
    """Load a model's weights, compile its kernels, load its matrix products and measure its software times."""
    options = engine_options(RunConfig.from_values(pair.config(stage)).engine)
    arch = architecture(options, stage.models[pair.model])
    weights = make_weights(options, arch, 0)
    measure_software(arch, weights, options, runs / f"software-{arch.spec.name}.csv", stage)
    return weights


def run_pair(pair: Pair, stage: Stage, weights: Weights | None, runs: Path, begun: float) -> None:
    """Run a pair, write its folder and print a line of results."""
    values, folder = pair.config(stage), runs / pair.name
    setup = build(RunConfig.from_values(values))
    engine = make_engine(setup, weights)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.yaml", values)  # JSON is YAML
    with undisturbed():
        summary = serve_into(folder, setup, engine)
    write_json(folder / "summary.json", summary)
    work = [one for one in engine.records.iterations if one.gpu_s]
    busy = sum(one.gpu_s for one in work) / max(1e-9, sum(one.duration_s for one in work))
    latency, rates, batch = summary["normalized_latency_s_per_token"], summary["throughput"], summary["batch"]
    print(
        f"{time.monotonic() - begun:6.1f} s {pair.name:18} {summary['requests']} "
        f"{rates['output_tokens_per_s']:.0f} tokens/s, {latency['mean'] or 0:.5f} s/token, TTFT p50 "
        f"{summary['ttft_s']['p50'] or 0:.4f} s, TPOT {summary['tpot_s']['mean'] or 0:.5f} s, batch "
        f"{batch['mean_per_iteration'] or 0:.2f}, {summary['preemptions']}, GPU busy {busy:.3f}",
        flush=True,
    )
