#!/bin/sh
# behaviour: the prefix cache hit rate that vLLM 0.19 logs and exports counts a prompt that waits for memory again in every step, so that the rate under pressure is that of the prompts that wait
# package: vllm 0.19.0
# date: 2026-11-29
# guess: queries and hits are counted once for each request, so that the rate of these four prompts is 192 of 512 tokens in any pool that keeps the shared ones
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 "transformers>=4.56,<5" aiohttp blake3 cachetools \
    cbor2 cloudpickle compressed-tensors diskcache einops fastapi gguf llguidance msgspec openai \
    openai-harmony pillow prometheus-client psutil py-cpuinfo pybase64 pydantic pyzmq uvloop xgrammar
"$folder/venv/bin/pip" install -q --no-deps vllm==0.19.0
export HOME="$folder" TMPDIR="$folder"
cd "$folder"
cat > rate.py <<'END'
import json
import os
import tempfile
from importlib.metadata import version
from pathlib import Path

os.environ.update(VLLM_LOGGING_LEVEL="CRITICAL", HF_HUB_OFFLINE="1")
import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK, LONGEST, OUTPUT = 16, 512, 100
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 128,
    "max_position_embeddings": LONGEST,
}


def scheduler_with(num_blocks):
    """vLLM's own scheduler and KV cache manager over so many blocks, without a GPU."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(SHAPE))
        model = ModelConfig(
            folder, tokenizer=folder, skip_tokenizer_init=True, dtype="float16", max_model_len=LONGEST
        )
        config = VllmConfig(
            model_config=model,
            scheduler_config=SchedulerConfig(
                max_num_seqs=8,
                max_num_batched_tokens=LONGEST,
                max_model_len=LONGEST,
                is_encoder_decoder=False,
                async_scheduling=False,
            ),
            cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
            device_config=DeviceConfig("cpu"),
        )
    config.cache_config.num_gpu_blocks = num_blocks
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=16, dtype=torch.float16)
    cache = KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)])
    manager = StructuredOutputManager(config)
    return Scheduler(config, cache, manager, BLOCK, log_stats=True)


def counted(num_blocks):
    """What the scheduler counts while it serves four prompts of 128 tokens, 64 of them shared."""
    scheduler = scheduler_with(num_blocks)
    hash_function = get_hash_fn_by_name("sha256")
    init_none_hash(hash_function)
    hasher = get_request_block_hasher(BLOCK, hash_function)
    for number in range(4):
        prompt = [*range(64), *([100 + number] * 64)]
        params = SamplingParams(max_tokens=OUTPUT, ignore_eos=True)
        request = Request(
            str(number), prompt, params, None, arrival_time=float(number), block_hasher=hasher
        )
        scheduler.add_request(request)
    requests = queries = hits = 0
    while scheduler.has_unfinished_requests():
        plan = scheduler.schedule()
        names = [*plan.num_scheduled_tokens]
        served = [scheduler.requests[name] for name in names]
        answer = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=[
                [7] if request.num_computed_tokens == request.num_tokens else []
                for request in served
            ],
        )
        for of_client in scheduler.update_from_output(plan, answer).values():
            if of_client.scheduler_stats is not None:
                counts = of_client.scheduler_stats.prefix_cache_stats
                requests += counts.requests
                queries += counts.queries
                hits += counts.hits
    return requests, queries, hits


print("vllm", version("vllm"), "- 4 prompts of 128 tokens, the first 64 shared")
print("guess: 4 requests, 192 of 512 tokens (37.5%) in a large pool and in a small one")
for num_blocks, seen in ((64, (4, 512, 192)), (18, (21, 2688, 1280))):
    requests, queries, hits = counted(num_blocks)
    rate = f"{hits:,} of {queries:,} tokens ({hits / queries:.1%})"
    print(f"seen with {num_blocks} blocks: {requests} requests, {rate}")
    assert (requests, queries, hits) == seen
END
"$folder/venv/bin/python" rate.py
