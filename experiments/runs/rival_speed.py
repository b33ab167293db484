"""The speed of AISimulate beside this simulator's: the same requests, the same times of iterations,
the same pool, in turn, each measurement in a new process.
"""

import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import testbed
from testbed.core.request import PS, Workload
from testbed.core.specs import ModelSpec, ServerSpec
from testbed.cost.model import Affine, CostModel, Work
from testbed.experiments.runs.run_store import RunStore
from testbed.run.build import build

HEAD = ("requests", "simulator", "CPU s, best", "median", "a CPU second", "AISimulate's, times")
STEP_MS = 20.0  # of the decodes of an iteration, and again of its prompts
NUM_BLOCKS, BLOCK_SIZE, MAX_TOKENS, MAX_SEQS = 983, 16, 2560, 256
FEW = 100  # requests of a run whose time is subtracted: what does not depend on their number
REPLAYED = ("trace=csv", "arrivals=replay", "cost=testbed.experiments.runs.rival_speed:FixedTimes")
OURS = {
    "2023 system": ("+system=vllm",),
    "vllm_v1": (
        "+system=vllm-v1",
        "scheduler=vllm_v1",
        "null_blocks=0",
        "policy=paged",
        "server=a100-40gb",
        f"server.num_blocks={NUM_BLOCKS}",
        f"scheduler.max_num_batched_tokens={MAX_TOKENS}",
        f"scheduler.max_num_seqs={MAX_SEQS}",
    ),
}
RIVAL = """
import json, sys, time
from aisimulate._runtime import run_replay_json
spec = open(sys.argv[1]).read()
began = time.process_time()
report = json.loads(run_replay_json(spec))
print(json.dumps([time.process_time() - began, report["mean_e2e_latency_ms"]]))
"""


class FixedTimes(CostModel):
    """An iteration takes STEP_MS if it decodes, and as long again if it computes prompts."""

    provenance = "fixed times"

    def __init__(self, model: ModelSpec, server: ServerSpec) -> None:
        self.step_ps = round(STEP_MS * PS / 1000)

    def iteration(self, work: Work) -> int:
        return self.step_ps * (bool(work.decode_seqs) + bool(work.prefill))

    def decode(self, work: Work) -> Affine:
        return Affine(self.step_ps, growth_ps=0, steps=1 << 40)


class Served(NamedTuple):
    """The CPU time of a measurement in s, and the mean latency that it answered, in ms."""

    cpu_s: float
    e2e_ms: float


def interpreter(given: str | None) -> str | None:
    """The Python that has AISimulate: the given one, else this one; None: it is not installed."""
    return given or (sys.executable if find_spec("aisimulate") else None)


def compared(
    python: str, lengths: tuple[tuple[str, str], ...], repeats: int
) -> Iterator[tuple[str, ...]]:
    """The rows of the table, for 1 and 2 requests/s of an hour; lengths: length files by name."""
    for rate in (1, 2):
        config = RunStore(Path(), lengths).config((f"arrivals.rate={rate}", "+system=vllm"))
        yield from _rows(f"{rate} req/s, an hour", python, build(config).workload, repeats)


def _rows(name: str, python: str, workload: Workload, repeats: int) -> Iterator[tuple[str, ...]]:
    served: dict[str, list[Served]] = {"AISimulate": [], **{ours: [] for ours in OURS}}
    with tempfile.TemporaryDirectory() as folder:
        files = write_requests(workload, Path(folder))
        for number in range(repeats):
            print(f"measuring {name}, {number + 1} of {repeats}", file=sys.stderr, flush=True)
            served["AISimulate"].append(_by_rival(python, files["spec"]))
            for ours in OURS:
                served[ours].append(_by_us(ours, files))
    check_latencies(name, served)
    best = min(times.cpu_s for times in served["AISimulate"])
    for simulator, measured in served.items():
        times = [served_once.cpu_s for served_once in measured]
        rate = f"{len(workload) / min(times):,.0f}"
        cells = f"{min(times):.3f}", f"{median(times):.3f}", rate, f"{best / min(times):.2f}"
        yield (name, simulator, *cells)


def write_requests(workload: Workload, folder: Path) -> dict[str, Path]:
    """The requests as both simulators read them, all and a few."""
    files = {name: folder / name for name in ("all.csv", "few.csv", "all.jsonl", "spec")}
    rows = [(request.prompt_len, request.output_len, request.arrival_ps) for request in workload]
    for name, some in (("all.csv", rows), ("few.csv", rows[:FEW])):
        with files[name].open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("input_tokens", "output_tokens", "arrival_s"))
            writer.writerows((prompt, output, at_ps / PS) for prompt, output, at_ps in some)
    with files["all.jsonl"].open("w") as file:
        block = 0
        for prompt, output, at_ps in rows:
            ids = list(range(block, block := block - (-prompt // BLOCK_SIZE)))
            lengths = {"input_length": prompt, "output_length": output, "hash_ids": ids}
            file.write(json.dumps({"timestamp": at_ps * 1000 / PS, **lengths}) + "\n")
    files["spec"].write_text(json.dumps(execution_spec(files["all.jsonl"])))
    return files


def execution_spec(trace: Path) -> Mapping[str, Any]:
    """The specification that AISimulate's EngineReplayRuntime runs: one vLLM worker with fixed
    times (0.13.0).
    """
    spec = {
        "version": 1,
        "topology": {
            "kind": "aggregated",
            "workers": {"initial_workers": 1, "startup_delay_ms": 0.0},
        },
        "engine": _worker(),
        "adapters": {
            "placement": {"provider": "round_robin", "config": None},
            "scaling": {"provider": "none", "config": None},
        },
        "max_sim_time_ms": None,
        "max_in_flight": None,
        "record_per_request": False,
        "sla": {},
        "requests": [],
    }
    traffic = {
        "source_type": "trace",
        "load_type": "trace_timestamps",
        "trace_paths": [str(trace)],
        "trace_path": str(trace),
        "trace_format": "mooncake",
        "trace_block_size": BLOCK_SIZE,
        "arrival_speedup_ratio": 1.0,
    }
    return {"spec": spec, "traffic": traffic}


def _worker() -> Mapping[str, Any]:
    """A vLLM worker on one GPU, whose iterations all take STEP_MS."""
    rank = {
        "backend": "vllm",
        "block_size": BLOCK_SIZE,
        "num_gpu_blocks": NUM_BLOCKS,
        "max_num_batched_tokens": MAX_TOKENS,
        "max_num_seqs": MAX_SEQS,
        "max_model_len": 131_072,
        "prefill_schedule_interval": 1,
        "prefill_decode_interval": 0,
        "enable_prefix_caching": False,
        "timing_model": {"type": "fixed", "prefill_ms": STEP_MS, "decode_ms": STEP_MS},
    }
    sizes = {"dp_size": 1, "tensor_parallel_size": 1, "prefill_context_parallel_size": 1}
    return {**sizes, "num_gpu_blocks_is_explicit": True, "rank": rank}


def _by_rival(python: str, spec: Path) -> Served:
    done = subprocess.run(
        [python, "-c", RIVAL, str(spec)], capture_output=True, text=True, check=True
    )
    return Served(*json.loads(done.stdout.splitlines()[-1]))


def _by_us(ours: str, files: Mapping[str, Path]) -> Served:
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(measured, (ours, str(files["all.csv"]), str(files["few.csv"])))


def serve(ours: str, path: str) -> Served:
    """Serve the requests of a file, all of it in Python: read, simulate and sum up."""
    began = time.process_time()
    result = testbed.simulate(*OURS[ours], *REPLAYED, f"trace.path={path}")
    cpu_s = time.process_time() - began
    return Served(cpu_s, result.summary["e2e_s"]["mean"] * 1000)


def check_latencies(name: str, served: Mapping[str, list[Served]]) -> None:
    """Both simulators have computed the same: their mean latencies agree to a thousandth (to ten
    digits if nothing is preempted)."""
    answers = {simulator: measured[0].e2e_ms for simulator, measured in served.items()}
    if max(answers.values()) > min(answers.values()) * (1 + 1e-3):
        print(f"{name}: the mean latencies in ms differ: {answers}", file=sys.stderr)


def measured(ours: str, path: str, few: str) -> Served:
    """One measurement of this simulator, in a process of its own: a long run less a short one."""
    serve(ours, few)
    short_s = min(serve(ours, few).cpu_s for _ in range(2))
    served = serve(ours, path)
    return Served(served.cpu_s - short_s, served.e2e_ms)
