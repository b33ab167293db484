"""Starts of servers: options of `vllm serve` for each config.json, here and in the installed
vLLM.

Each row is words of a command: sizes at their ends, parallelism that does not divide a model,
types, and options that another one excludes.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

from testbed.experiments.real.lockstep.config_comparison import config_files
from testbed.experiments.real.lockstep.server_starts import Asked, compared

GPUS = ("h100-80gb",)


def _drafts(**values: object) -> str:
    return f"--speculative-config '{json.dumps(values)}'"


NGRAM = _drafts(method="ngram", num_speculative_tokens=3)
OPTIONS = (
    "--max-num-seqs 0",
    "--max-num-seqs 1",
    "--max-num-seqs 16",
    "--max-num-seqs 3000",
    "--max-num-seqs 3000 --enforce-eager",
    "--max-num-seqs 9000",
    "--max-num-batched-tokens 0",
    "--max-num-batched-tokens 64",
    "--max-num-batched-tokens 512 --max-num-seqs 64",
    "--max-num-batched-tokens 512 --max-num-seqs 513",
    "--max-num-batched-tokens 100000",
    "--no-enable-chunked-prefill",
    "--no-enable-chunked-prefill --max-num-batched-tokens 2000",
    "--no-enable-chunked-prefill --max-num-batched-tokens 2000 --max-model-len 2000",
    "--no-enable-chunked-prefill --no-enable-prefix-caching",
    "--long-prefill-token-threshold 500",
    "--long-prefill-token-threshold 2000 --max-model-len 1000",
    "--block-size 1",
    "--block-size 8",
    "--block-size 16",
    "--block-size 48",
    "--block-size 64",
    "--block-size 100",
    "--block-size 256",
    "--block-size 1024",
    "--kv-cache-dtype fp8",
    "--kv-cache-dtype fp8_e5m2",
    "--kv-cache-dtype bfloat16",
    "--kv-cache-dtype float16",
    "--kv-cache-dtype fp8 --calculate-kv-scales",
    "--kv-cache-dtype int8",
    "--gpu-memory-utilization 0",
    "--gpu-memory-utilization 0.5",
    "--gpu-memory-utilization 1.01",
    "--kv-cache-memory-bytes 64M",
    "--kv-cache-memory-bytes 64M --max-model-len auto",
    "--kv-cache-memory-bytes 1000",
    "--num-gpu-blocks-override 4",
    "--num-gpu-blocks-override 700",
    "--num-gpu-blocks-override 700 --max-model-len 2000",
    "-tp 2",
    "-tp 3",
    "-tp 5",
    "-tp 8",
    "-pp 2",
    "-pp 7",
    "-tp 2 -dcp 2",
    "-tp 8 -dcp 8",
    "-dcp 2",
    "-tp 8 -dcp 3",
    "-dp 2",
    "-tp 2 --enable-expert-parallel",
    "--enforce-eager",
    "--enable-prefix-caching",
    "--no-enable-prefix-caching",
    "--enable-prefix-caching --no-enable-chunked-prefill",
    "--disable-hybrid-kv-cache-manager",
    "--disable-hybrid-kv-cache-manager --no-enable-prefix-caching",
    "--disable-sliding-window",
    "--async-scheduling",
    "--no-async-scheduling",
    "--scheduling-policy priority",
    "--scheduling-policy lifo",
    "--performance-mode throughput",
    "--max-model-len 0",
    "--max-model-len 1",
    "--max-model-len 5000",
    "--max-model-len 9000000",
    "--max-model-len 2k --max-num-seqs 2",
    "--dtype float16",
    "--dtype float32",
    "--dtype int4",
    "--quantization fp8",
    "--quantization fp8 --dtype float16",
    "--quantization awq",
    "--quantization gptq --dtype float16",
    "--quantization fp8 --kv-cache-dtype fp8",
    NGRAM,
    f"{NGRAM} --async-scheduling",
    f"{NGRAM} -tp 2",
    f"{NGRAM} --no-enable-chunked-prefill",
    f"{NGRAM} --max-num-seqs 3000",
    f"{NGRAM} --kv-cache-dtype fp8",
    _drafts(method="ngram", num_speculative_tokens=0),
    _drafts(method="ngram"),
    _drafts(method="mtp", num_speculative_tokens=1),
    _drafts(method="medusa", num_speculative_tokens=1),
    _drafts(num_speculative_tokens=2),
)


def check_starts(folder: Path, count: int | None, seed: int) -> Iterator[str]:
    """Compare every option for every config.json below a folder, or `count` that are drawn; a line
    for each difference, and the counts last.
    """
    questions = list(_questions(folder))
    if count is not None:
        questions = Random(seed).sample(questions, min(count, len(questions)))
    return compared(questions)


def _questions(folder: Path) -> Iterator[Asked]:
    for path in config_files(folder):
        config = json.loads(path.read_text(encoding="utf-8"))
        for gpu in GPUS:
            yield from (Asked(path.parent.name, config, gpu, words) for words in OPTIONS)
