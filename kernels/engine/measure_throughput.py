"""Output tokens a second on ragged requests: the engine, and `transformers` with SDPA and static batches beside it.

python -m kernels.engine.measure_throughput [--model opt-13b] [--limit-s 200] [--out FOLDER]
"""

import argparse
import gc
import json
import time
from pathlib import Path
from typing import Any

import torch

from kernels.engine.architecture import of_spec
from kernels.engine.assemble import Options, assemble
from kernels.engine.weights import random_weights
from kernels.measure.fingerprint import fingerprint
from testbed.core.request import Request
from testbed.core.shapes import read_model
from testbed.core.specs import GIB, ModelSpec
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute
from traces.synthetic import Fitted

POOL_GIB, MAX_LEN, STATIC_BATCH = 60, 2048, 32
Lengths = list[tuple[int, int]]


def main() -> None:
    """Measure both, print the ratio, write a file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="opt-13b")
    parser.add_argument("--num-requests", type=int, default=256)
    parser.add_argument("--limit-s", type=float, default=200.0, help="transformers starts no batch after that")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    spec = read_model(options.model)
    rows = Fitted("sharegpt").rows(options.num_requests, 0, MAX_LEN)
    lengths = list(zip(rows.prompt_len.tolist(), rows.output_len.tolist(), strict=True))
    ours = serve(spec, lengths)
    print("engine", ours, flush=True)
    gc.collect()
    torch.cuda.empty_cache()
    theirs = static_batches(spec, lengths, options.limit_s)
    print("transformers", theirs, flush=True)
    ratio = ours["output_tokens_per_s"] / theirs["output_tokens_per_s"]
    print(f"ratio {ratio:.2f}")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        about = {"model": spec.name, "engine": ours, "transformers": theirs, "ratio": round(ratio, 3)}
        text = json.dumps(about | {"fingerprint": fingerprint()}, indent=1)
        (options.out / f"throughput-{spec.name}.json").write_text(text, encoding="utf-8")


def serve(spec: ModelSpec, lengths: Lengths) -> dict[str, Any]:
    """All requests at once through the engine, paged, with as many resident as fit."""
    arch = of_spec(spec)
    pool = PoolSpec(POOL_GIB * GIB // spec.kv_bytes_per_token, MAX_LEN)
    scheduler = MixedPrefill(Paged(pool), Recompute(), max_num_batched_tokens=4096, max_num_seqs=256)
    weights = random_weights(arch, 0, "cuda", torch.float16)
    engine = assemble(scheduler, pool, arch, weights, Options("cuda", torch.float16, graphs=256))
    records = engine.serve(Request(i, 0, *one) for i, one in enumerate(lengths))
    seconds = engine.clock.now()
    gpu = sum(one.gpu_s for one in records.iterations)
    counts = {"requests": len(records.requests), "iterations": len(records.iterations)}
    return counts | rate(sum(output for _, output in lengths), seconds) | {"gpu_share": round(gpu / seconds, 4)}


def static_batches(spec: ModelSpec, lengths: Lengths, limit_s: float) -> dict[str, Any]:
    """The same requests in order, STATIC_BATCH at a time, each batch padded and run until its longest output ends."""
    model = _transformers_model(spec)
    begun, tokens, answered = time.perf_counter(), 0, 0
    for first in range(0, len(lengths), STATIC_BATCH):
        batch = lengths[first : first + STATIC_BATCH]
        longest = max(prompt for prompt, _ in batch)
        ids = torch.randint(4, spec.vocab_size, (len(batch), longest), device="cuda")
        mask = torch.tensor([[0] * (longest - prompt) + [1] * prompt for prompt, _ in batch], device="cuda")
        steps = min(max(output for _, output in batch), MAX_LEN - longest)
        with torch.inference_mode():
            model.generate(
                ids, attention_mask=mask, do_sample=False, min_new_tokens=steps, max_new_tokens=steps,
                eos_token_id=None, pad_token_id=1,
            )  # fmt: skip
        torch.cuda.synchronize()
        tokens += sum(min(output, steps) for _, output in batch)
        answered += len(batch)
        if time.perf_counter() - begun > limit_s:
            break
    return {"requests": answered} | rate(tokens, time.perf_counter() - begun)


def rate(tokens: int, seconds: float) -> dict[str, Any]:
    """Tokens, seconds, and tokens a second."""
    return {"output_tokens": tokens, "seconds": round(seconds, 3), "output_tokens_per_s": round(tokens / seconds, 1)}


def _transformers_model(spec: ModelSpec) -> Any:
    import transformers

    config = transformers.OPTConfig(
        vocab_size=spec.vocab_size, hidden_size=spec.hidden_size, num_hidden_layers=spec.num_layers,
        ffn_dim=spec.ffn_size, num_attention_heads=spec.num_heads, word_embed_proj_dim=spec.hidden_size,
        max_position_embeddings=spec.max_len,
    )  # fmt: skip
    torch.set_default_dtype(torch.float16)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    torch.set_default_dtype(torch.float32)
    return model.half().eval()


if __name__ == "__main__":
    main()
