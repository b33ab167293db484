"""Start vLLM's engine six times, each time up to the size of its KV cache, and keep the logs.

    python start_ups.py MODEL_FOLDER OUT_DIR

For a machine with one GPU and vLLM 0.20.2. Each engine is killed once it has logged "Maximum
concurrency": CUDA graphs are captured after that, and are not needed. OUT_DIR gets one log for each
start-up, which begins with its command, and gpu.json, the memory that CUDA reports.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

SEQUENCES = (64, 1024)
BUDGETS = (2048, 8192, 16384)
LAST_LINE = "Maximum concurrency for"
LONGEST_S = 150.0
COMMAND = "vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192 --gpu-memory-utilization 0.9"
ENGINE = """
import sys
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM

if __name__ == "__main__":
    args = AsyncEngineArgs(
        model=sys.argv[1], skip_tokenizer_init=True, load_format="dummy", max_model_len=8192,
        gpu_memory_utilization=0.9, max_num_seqs=int(sys.argv[2]),
        max_num_batched_tokens=int(sys.argv[3]),
    )
    AsyncLLM.from_engine_args(args, usage_context=UsageContext.OPENAI_API_SERVER)
"""
ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "DEBUG",  # the profiling run's terms
    "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0",  # the cache is sized as 0.19 does it
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "PYTHONUNBUFFERED": "1",
}


def main(model: str, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    engine = Path("/tmp/engine.py")
    engine.write_text(ENGINE)
    (out / "gpu.json").write_text(json.dumps({"memory": gpu_memory()}))
    for num_seqs in SEQUENCES:
        for budget in BUDGETS:
            name = f"seqs-{num_seqs}_tokens-{budget}"
            words = [sys.executable, str(engine), model, str(num_seqs), str(budget)]
            log = out / f"{name}.log"
            log.write_text(
                f"{COMMAND} --max-num-seqs {num_seqs} --max-num-batched-tokens {budget}\n"
            )
            start = time.monotonic()
            lines = logged_until_sized(words, log)
            print(f"{name}: {time.monotonic() - start:.0f} s", *lines, sep="\n  ", flush=True)


def gpu_memory() -> str:
    query = ["nvidia-smi", "--query-gpu=name,memory.total,memory.used", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True).stdout.strip()


def logged_until_sized(words: list[str], path: Path) -> list[str]:
    """The lines about memory of an engine that is killed once its cache is sized."""
    environment = {**os.environ, **ENVIRONMENT}
    kept = []
    with path.open("a") as log:
        process = subprocess.Popen(
            words,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        watchdog = threading.Timer(LONGEST_S, kill, [process])
        watchdog.start()
        for line in process.stdout or ():
            log.write(line)
            if any(word in line for word in ("memory", "KV cache", LAST_LINE)):
                kept.append(line.strip()[-300:])
            if LAST_LINE in line:
                break
        watchdog.cancel()
        kill(process)
    return kept[-8:]


def kill(process: subprocess.Popen[str]) -> None:
    """End the engine with its worker, and wait until the GPU's memory is free again."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for _ in range(40):
        if int(gpu_memory().rpartition(",")[2].split()[0]) < 1000:
            return
        time.sleep(0.25)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
