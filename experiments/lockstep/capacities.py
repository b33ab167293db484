"""Comparisons beside iterations: blocks of the shapes that ship on H200s; AISimulate's times, where
it is installed.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from testbed.build import Setup, build
from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.core.model_files import model_names
from testbed.core.request import PS, Request
from testbed.core.slots import ceil_div
from testbed.core.specs import ModelSpec
from testbed.cost.model import CostModel, Work
from testbed.engine.simulation import simulate
from testbed.experiments.lockstep import vllm_installation as vllm
from testbed.experiments.lockstep.vllm_installation import Options, options_of
from testbed.experiments.runs.compose import configured
from testbed.machine import make_pool
from testbed.memory.groups.page_rules import OnePageSize
from testbed.memory.prefix_cache.hash_chain import block_contents

MS = PS // 1000
PS_PER_US = PS // 10**6
TIMES = ("arrival", "finish")
ALIGNED = {
    False: 16,
    True: 64,
}  # tokens, to a multiple of which vLLM's kernels take blocks; of latents
GPUS = (1, 2, 4, 8, 16, 32)
HEADER = (
    "| model | GPUs | bytes a token | block | page bytes | blocks | tokens | vLLM: page bytes | "
    "blocks | tokens |"
)


class Capacity(NamedTuple):
    """Of one GPU: bytes of a page, which has the layers of one group; pages; tokens if each group
    has as many pages.
    """

    page_bytes: int
    num_blocks: int
    num_tokens: int


def check_capacities(overrides: Sequence[str]) -> tuple[list[str], bool]:
    """A table in Markdown, one shape a row, and whether any is different; each on the fewest H200s
    that it fits. Raises InputError where vLLM is not installed.
    """
    vllm.installed_release()
    lines, different = [HEADER, "|---" * HEADER.count(" |") + "|"], False
    for name in model_names():
        config = fitting(name, overrides)
        if config.model.states and config.model.states.num_tokens:
            continue  # no model of vLLM 0.19 has cross-attention to images
        model, num_gpus = config.model, config.server.num_gpus
        size = block_size(model, num_gpus)
        here, there = (
            ours(config, size),
            theirs(model, num_gpus, config.server.kv_pool_bytes(model), size),
        )
        different = different or here != there
        token_bytes = model.kv_bytes_per_token * model.kv_copies(num_gpus)
        numbers = "".join(
            f" {number:,} |" for number in (num_gpus, token_bytes, size, *here, *there)
        )
        lines.append(f"| {name} |{numbers}")
    return lines, different


def fitting(name: str, overrides: Sequence[str]) -> RunConfig:
    """The config of a model on the fewest GPUs that leave a pool in which its longest sequence
    fits.
    """
    for num_gpus in GPUS:
        config = configured(
            (f"model={name}", "server=h200", f"server.num_gpus={num_gpus}", *overrides)
        )
        model = config.model
        if config.server.kv_pool_bytes(model) >= 2 * model.max_len * model.kv_bytes_per_token:
            return config
    raise InputError(f"model={name}: does not fit {GPUS[-1]} GPUs")


def block_size(model: ModelSpec, num_gpus: int) -> int:
    """vLLM's: as small as its kernels take it, and large enough for a state to fit a page."""
    aligned = ALIGNED[model.latent is not None]
    state_bytes = max(group.state_bytes for group in model.groups) // num_gpus
    return aligned * max(1, ceil_div(state_bytes, aligned * slot_bytes(model, num_gpus)))


def slot_bytes(model: ModelSpec, num_gpus: int) -> int:
    """Bytes of a token in one layer on one GPU."""
    return model.slot_bytes * model.kv_copies(num_gpus) // num_gpus


def ours(config: RunConfig, size: int) -> Capacity:
    """What page_rule=one_page_size makes of the pool of a run."""
    pool = make_pool(config)
    pages = OnePageSize(pool.num_slots * pool.num_layers, pool.groups, size)
    num_blocks = pages.total // pages.page_units
    page_bytes = pages.page_units * pool.layer_bytes // pool.num_gpus
    return Capacity(page_bytes, num_blocks, num_blocks // len(pages.columns) * size)


def theirs(model: ModelSpec, num_gpus: int, pool_bytes: int, size: int) -> Capacity:
    """What vLLM makes of the same bytes; its own report of tokens is blocks // groups * block
    size.
    """
    specs = {
        f"{group.name}.{i}": spec_of(model, group, num_gpus, size)
        for group in model.groups
        for i in range(group.num_layers)
    }
    cache = vllm.kv_cache_of(specs, pool_bytes // num_gpus, model.max_len)
    groups = cache.kv_cache_groups
    layers = max(len(group.layer_names) for group in groups)
    page_bytes = layers * groups[0].kv_cache_spec.page_size_bytes
    return Capacity(page_bytes, cache.num_blocks, cache.num_blocks // len(groups) * size)


def spec_of(model: ModelSpec, group: Any, num_gpus: int, size: int) -> Any:
    """A layer's KVCacheSpec; a state is padded to a page of attention, as vLLM's config does."""
    import torch
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        MambaSpec,
        MLAAttentionSpec,
        SlidingWindowSpec,
    )

    if group.state_bytes:
        padded = size * slot_bytes(model, num_gpus)
        return MambaSpec(
            size, ((group.state_bytes // num_gpus,),), (torch.uint8,), page_size_padded=padded
        )
    dtype = {1: torch.uint8, 2: torch.float16, 4: torch.float32}[
        model.kv_dtype_bytes or model.dtype_bytes
    ]
    if model.latent:
        width = model.latent.kv_rank + model.latent.rope_size
        return MLAAttentionSpec(block_size=size, num_kv_heads=1, head_size=width, dtype=dtype)
    heads = max(1, model.num_kv_heads // num_gpus)
    shape = {
        "block_size": size,
        "num_kv_heads": heads,
        "head_size": model.head_size,
        "dtype": dtype,
    }
    return (
        SlidingWindowSpec(**shape, sliding_window=group.window)
        if group.window
        else FullAttentionSpec(**shape)
    )


class FixedTimes(CostModel):
    """An iteration takes step_ps if it decodes, and step_ps more if it computes prompts."""

    def __init__(self, step_ps: int) -> None:
        self.step_ps = step_ps

    def iteration(self, work: Work) -> int:
        return self.step_ps * (bool(work.decode_seqs) + bool(work.prefill))


def third_column(setup: Setup, requests: Sequence[Request], step_ps: int) -> Iterator[str]:
    """One line: how many requests have their last token at the same time as ours; nothing where it
    is not installed.
    """
    try:
        import dynamo._core as core
    except ImportError:
        return
    options = options_of(setup)
    if (
        options.asynchronous
        or options.long_prefill_token_threshold
        or not options.enable_chunked_prefill
    ):
        yield (
            "AISimulate: has neither asynchronous scheduling nor thresholds nor whole prompts; "
            "left out"
        )
        return
    start_ps = requests[0].arrival_ps  # where its clock begins
    requests = [request._replace(arrival_ps=request.arrival_ps - start_ps) for request in requests]
    built = build(setup.config)
    rows = simulate(
        requests, built.scheduler, FixedTimes(step_ps), built.model.max_len
    ).requests.columns()
    arrival_us, finish_us = (
        [round(ps / PS_PER_US) for ps in rows[f"{name}_ps"].tolist()] for name in TIMES
    )
    lengths = rows["prompt_len"].tolist(), rows["output_len"].tolist()
    ours: Counter[tuple[int, ...]] = Counter(zip(arrival_us, *lengths, finish_us, strict=True))
    equal = sum((ours & _theirs(core, options, requests, step_ps)).values())
    yield (
        f"AISimulate: {equal:,} of {len(requests):,} requests have their last token when ours "
        f"have it"
    )


def _theirs(
    core: Any, options: Options, requests: Sequence[Request], step_ps: int
) -> Counter[tuple[int, ...]]:
    engine = {
        "num_gpu_blocks": options.num_blocks - 1,
        "block_size": options.block_size,
        "max_num_seqs": options.max_num_seqs,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "enable_prefix_caching": options.caches,
        "timing_model": {"type": "fixed", "prefill_ms": step_ps / MS, "decode_ms": step_ps / MS},
    }
    with TemporaryDirectory(prefix="lockstep-") as folder:
        path = Path(folder, "trace.jsonl")
        path.write_text("\n".join(_lines(requests, options.block_size)), encoding="utf-8")
        result = core.run_mocker_trace_replay(
            [str(path)],
            extra_engine_args={"engine": engine},
            trace_block_size=options.block_size,
            capture_per_request=True,
        )
    names = ("arrival_time_ms", "input_length", "output_length", "last_token_ms")
    rows = result["per_request"] if isinstance(result, dict) else result.per_request
    return Counter(
        (round(row[names[0]] * 1000), row[names[1]], row[names[2]], round(row[names[3]] * 1000))
        for row in rows
    )


def _lines(requests: Sequence[Request], block_size: int) -> Iterator[str]:
    """Its trace: blocks by number, equal ones for equal contents behind equal ones."""
    numbers = count(1)
    ids_of = defaultdict[Any, int](numbers.__next__)
    for request in requests:
        contents: Iterable[Any] = ()
        if request.prompt_ids is not None:
            contents = block_contents(
                request.prompt_ids, request.tokens_per_id, request.prompt_len, block_size
            )
        ids = list[int]()
        previous = 0
        for content in contents:
            previous = ids_of[previous, content]
            ids.append(previous)
        ids += [next(numbers) for _ in range(-(-request.prompt_len // block_size) - len(ids))]
        yield json.dumps(
            {
                "timestamp": request.arrival_ps / MS,
                "input_length": request.prompt_len,
                "output_length": request.output_len,
                "hash_ids": ids,
            }
        )
