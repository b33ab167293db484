"""Start a real vLLM once for each row of a table and note what it logs of its memory.

    python log_start_ups.py MODEL_FOLDER LIMITS.csv OUT_FOLDER

MODEL_FOLDER holds a config.json; the weights are random ones (load_format=dummy). LIMITS.csv has
the columns max_num_seqs, max_num_batched_tokens, max_model_len and gpu_memory_utilization.
OUT_FOLDER gets the log of each start-up, and startups.csv: the limits, then what vLLM logs (GiB,
tokens of the KV cache). CUDA graphs are not subtracted, as in vLLM 0.19; releases after it would
(VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS). It needs vLLM and a GPU, and nothing of this project.
"""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

LOGGED = {
    "logged_weights_gib": r"Model loading took ([\d.]+) GiB",
    "logged_activation_gib": r"([\d.]+) ?GiB for peak activation",
    "logged_non_torch_gib": r"([\d.]+) ?GiB for non-torch",
    "logged_kv_gib": r"Available KV cache memory: ([\d.]+) GiB",
    "logged_tokens": r"GPU KV cache size: ([\d,]+) tokens",
}
TIMEOUT_S = 240
ENVIRONMENT = {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0", "VLLM_LOGGING_LEVEL": "DEBUG"}


def main(model: str, limits: str, out: str) -> None:
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    with open(limits, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows.append({**row, **logged(start_up(model, row, folder))})
            write(folder / "startups.csv", rows)
            print(rows[-1], flush=True)


def start_up(model: str, limits: dict[str, str], folder: Path) -> str:
    """The log of one engine that starts in a process of its own and ends."""
    name = "-".join(limits.values())
    command = [sys.executable, __file__, "--engine", model, *limits.values()]
    path = folder / f"start-up-{name}.log"
    with path.open("w", encoding="utf-8") as log:
        subprocess.run(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            env={**os.environ, **ENVIRONMENT},
        )
    return path.read_text(encoding="utf-8")


def logged(log: str) -> dict[str, str]:
    """The last value of each kind in a log; empty if it has none."""
    values = {name: re.findall(pattern, log) for name, pattern in LOGGED.items()}
    return {name: found[-1].replace(",", "") if found else "" for name, found in values.items()}


def write(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def run_engine(model: str, seqs: str, tokens: str, length: str, utilization: str) -> None:
    """Start vLLM's engine core as `vllm serve` does, and end it."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    options = AsyncEngineArgs(
        model=model,
        load_format="dummy",
        skip_tokenizer_init=True,
        max_num_seqs=int(seqs),
        max_num_batched_tokens=int(tokens),
        max_model_len=int(length),
        gpu_memory_utilization=float(utilization),
    )
    AsyncLLM.from_engine_args(options, usage_context=UsageContext.OPENAI_API_SERVER).shutdown()


if __name__ == "__main__":
    if sys.argv[1] == "--engine":
        run_engine(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
