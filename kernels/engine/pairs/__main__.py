"""The GPU's side of the pairs, all in one process; raw rows go into one archive, which grows with every run.

python -m kernels.engine.pairs --out FOLDER [--only NAME,NAME] [--limit-s 520] [--rehearse]

FOLDER/pairs.tar.gz holds a run folder for each pair, and the software times of each model.
`python -m experiments.validation.pairs` makes the simulated side and the table, without a GPU.
"""

import argparse
import sys
import tarfile
import time
import traceback
from pathlib import Path

import torch

from kernels.engine.config import architecture, engine_options, make_run, make_weights
from kernels.engine.pairs.memory import free, undisturbed
from kernels.engine.pairs.plan import PAIRS, Pair, Stage, device, rehearsal
from kernels.engine.pairs.software import measure_software
from kernels.engine.weights import Weights
from testbed.core.errors import InputError

ARCHIVE = "pairs.tar.gz"


def main(arguments: list[str] | None = None) -> None:
    """Run the pairs of the command line; ends with an error if one failed or was left out."""
    parser = argparse.ArgumentParser("python -m kernels.engine.pairs", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", help="names of pairs, by commas")
    parser.add_argument("--limit-s", type=float, default=520.0, help="no pair begins after so many seconds")
    parser.add_argument("--rehearse", action="store_true", help="tiny models on the CPU, less than a second each")
    options = parser.parse_args(arguments)
    if options.rehearse:
        torch.set_num_threads(1)  # of tiny models
    stage = rehearsal() if options.rehearse else device()
    missing = run_pairs(chosen(options.only), stage, options.out, options.limit_s)
    if missing:
        raise SystemExit(f"kernels.engine.pairs: no result of {', '.join(missing)}")


def chosen(names: str | None) -> list[Pair]:
    """The pairs of these names, or all."""
    known = {pair.name: pair for pair in PAIRS}
    unknown = [name for name in (names or "").split(",") if name and name not in known]
    if unknown:
        raise InputError(f"unknown pair {unknown[0]}: choose from {', '.join(known)}")
    return [known[name] for name in names.split(",")] if names else PAIRS


def run_pairs(pairs: list[Pair], stage: Stage, out: Path, limit_s: float) -> list[str]:
    """Run them model by model; returns the names of those without a result."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "runs").mkdir(exist_ok=True)
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
    """A model's weights; its kernels compiled, its products loaded, its software times measured."""
    config = pair.config(stage)
    options = engine_options(config)
    arch = architecture(options, stage.models[pair.model])
    weights = make_weights(options, arch, 0)
    measure_software(arch, weights, options, runs / f"software-{pair.model}.csv", stage)
    return weights


def run_pair(pair: Pair, stage: Stage, weights: Weights | None, runs: Path, begun: float) -> None:
    """One run, its folder, a line of what came out."""
    run = make_run(pair.config(stage), weights)
    with undisturbed():
        summary = run.carry_out(runs / pair.name, packed=True)
    work = [one for one in run.engine.records.iterations if one.gpu_s]
    busy = sum(one.gpu_s for one in work) / max(1e-9, sum(one.duration_s for one in work))
    latency, rates, batch = summary["normalized_latency_s_per_token"], summary["throughput"], summary["batch"]
    print(
        f"{time.monotonic() - begun:6.1f} s {pair.name:18} {summary['requests']} "
        f"{rates['output_tokens_per_s']:.0f} tokens/s, {latency['mean'] or 0:.5f} s/token, TTFT p50 "
        f"{summary['ttft_s']['p50'] or 0:.4f} s, TPOT {summary['tpot_s']['mean'] or 0:.5f} s, batch "
        f"{batch['mean_per_iteration'] or 0:.2f}, {summary['preemptions']}, GPU busy {busy:.3f}",
        flush=True,
    )


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"kernels.engine.pairs: {error}") from None
