"""The blocks of the shapes that ship, beside those of the installed vLLM."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from testbed.core.model_files import model_names
from testbed.core.shapes import read_model
from testbed.core.slots import ceil_div
from testbed.core.specs import ModelSpec
from testbed.experiments.real.lockstep import vllm_installation as vllm
from testbed.experiments.runs.compose import configured
from testbed.memory.groups.page_rules import OnePageSize
from testbed.run.config import RunConfig
from testbed.run.machine import make_pool
from testbed.vllm.pages import pages_of

# Blocks of vLLM's kernels are multiples of so many tokens; by whether the model caches latents.
ALIGNED = {False: 16, True: 64}
GPUS = (1, 2, 4, 8, 16, 32)
NO_OPTIONS: Mapping[str, Any] = {}
HEADER = (
    "| model | GPUs | bytes a token | block | page bytes | blocks | tokens | vLLM: page bytes | "
    "blocks | tokens |"
)


class Capacity(NamedTuple):
    """The pool of one GPU.

    page_bytes: of a page, which has the layers of one group. num_tokens: if all groups have as many
    pages.
    """

    page_bytes: int
    num_blocks: int
    num_tokens: int


def check_capacities(overrides: Sequence[str]) -> tuple[list[str], bool]:
    """A table in Markdown with a row for each shape that ships, and whether any row differs.

    Each shape is on the fewest H200s that it fits. Raises InputError if vLLM is not installed.
    """
    vllm.installed_release()
    lines, different = [HEADER, "|---" * HEADER.count(" |") + "|"], False
    for name in model_names():
        config = fitting(name, overrides)
        if config is None or (config.model.states and config.model.states.num_tokens):
            continue  # no vLLM that is compared has cross-attention to images
        model, num_gpus = config.model, config.server.num_gpus
        size = block_size(model, num_gpus)
        here = ours(config, size)
        there = theirs(model, num_gpus, pool_bytes(config), size)
        different = different or here != there
        token_bytes = model.kv_bytes_per_token * model.kv_copies(num_gpus)
        numbers = (num_gpus, token_bytes, size, *here, *there)
        cells = [name, *(f"{number:,}" for number in numbers)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines, different


def fitting(name: str, overrides: Sequence[str]) -> RunConfig | None:
    """The config of a model on the fewest GPUs whose pool holds two of its longest sequences; None
    if that is more than its heads are divided among.
    """
    for num_gpus in GPUS:
        if read_model(name).heads_problem(num_gpus):
            continue
        config = configured(
            (f"model={name}", "server=h200", f"server.num_gpus={num_gpus}", *overrides)
        )
        model = config.model
        needed = 2 * model.max_len * model.kv_bytes_per_token
        if config.server.kv_pool_bytes(model) >= needed:
            return config
    return None


def block_size(model: ModelSpec, num_gpus: int) -> int:
    """vLLM's block size: the smallest that its kernels take and that makes a page hold a state."""
    aligned = ALIGNED[model.latent is not None]
    state_bytes = max(group.state_bytes for group in model.groups) // num_gpus
    return aligned * max(1, ceil_div(state_bytes, aligned * slot_bytes(model, num_gpus)))


def slot_bytes(model: ModelSpec, num_gpus: int) -> int:
    """Bytes of a token in one layer on one GPU."""
    return model.slot_bytes * model.kv_copies(num_gpus) // num_gpus


def ours(config: RunConfig, size: int) -> Capacity:
    """The capacity of a run's pool by page_rule=one_page_size; by arithmetic for layers whose heads
    differ or that read chunks, which no policy simulates.
    """
    if not _is_simulated(config.model):
        return _by_arithmetic(config, size)
    pool = make_pool(config)
    pages = OnePageSize(pool.num_slots * pool.num_layers, pool.groups, size)
    num_blocks = pages.total // pages.page_units
    page_bytes = pages.page_units * pool.layer_bytes // pool.num_gpus
    return Capacity(page_bytes, num_blocks, num_blocks // len(pages.columns) * size)


def _is_simulated(model: ModelSpec) -> bool:
    return not model.has_uneven_heads and model.chunks is None


def pool_bytes(config: RunConfig) -> int:
    """Bytes of a run's pool on all GPUs, which has whole tokens."""
    if not _is_simulated(config.model):
        return config.server.kv_pool_bytes(config.model)
    pool = make_pool(config)
    return pool.num_slots * pool.num_layers * pool.layer_bytes


def _by_arithmetic(config: RunConfig, size: int) -> Capacity:
    model, num_gpus = config.model, config.server.num_gpus
    pages = pages_of(model, num_gpus, size)
    num_blocks = config.server.kv_pool_bytes(model) // num_gpus // pages.page_bytes
    return Capacity(pages.page_bytes, num_blocks, pages.num_tokens(num_blocks))


def theirs(model: ModelSpec, num_gpus: int, num_bytes: int, size: int) -> Capacity:
    """The capacity of as many bytes in vLLM, which reports blocks // groups * block size tokens."""
    specs = specs_of(model, num_gpus, size)
    cache = vllm.kv_cache_of(specs, num_bytes // num_gpus, model.max_len)
    groups = cache.kv_cache_groups
    page_bytes = max(map(_page_bytes, groups))
    return Capacity(page_bytes, cache.num_blocks, cache.num_blocks // len(groups) * size)


def specs_of(
    model: ModelSpec, num_gpus: int, size: int, states: Mapping[str, Any] = NO_OPTIONS
) -> dict[str, Any]:
    """vLLM's KVCacheSpec of each layer. states: options of a MambaSpec."""
    specs = {
        f"{group.name}.{i}": spec_of(model, group, num_gpus, size, states)
        for group in model.groups
        for i in range(group.num_layers)
    }
    if model.chunks is not None:
        for layer in list(specs)[: model.chunks.num_layers]:
            specs[layer] = _in_chunks(specs[layer], model.chunks.size)
    return specs | _indexers(model, specs, size)


def _in_chunks(full: Any, size: int) -> Any:
    """The spec of a layer that reads chunks of `size` tokens, of one that reads all."""
    from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec

    names = ("block_size", "num_kv_heads", "head_size", "dtype")
    shape = {name: getattr(full, name) for name in names}
    return ChunkedLocalAttentionSpec(**shape, attention_chunk_size=size)


def _indexers(model: ModelSpec, layers: Iterable[str], size: int) -> dict[str, Any]:
    """The keys of sparse attention, a spec beside that of each layer (vLLM's
    DeepseekV32IndexerCache).
    """
    import torch
    from vllm.v1.kv_cache_interface import MLAAttentionSpec

    if not model.latent or not model.latent.index_bytes:
        return {}
    width = model.latent.index_bytes
    keys = MLAAttentionSpec(block_size=size, num_kv_heads=1, head_size=width, dtype=torch.uint8)
    return {f"{layer}.indexer": keys for layer in layers}


def _page_bytes(group: Any) -> int:
    """Bytes of a block in all layers of a group of vLLM's."""
    from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

    spec, num_layers = group.kv_cache_spec, len(group.layer_names)
    is_sum = isinstance(spec, UniformTypeKVCacheSpecs)  # of layers that differ in bytes
    return int(spec.page_size_bytes) * (1 if is_sum else num_layers)


def spec_of(
    model: ModelSpec,
    group: Any,
    num_gpus: int,
    size: int,
    states: Mapping[str, Any] = NO_OPTIONS,
) -> Any:
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
        shapes = ((group.state_bytes // num_gpus,),)
        return MambaSpec(size, shapes, (torch.uint8,), page_size_padded=padded, **states)
    dtype = {1: torch.uint8, 2: torch.float16, 4: torch.float32}[
        model.kv_dtype_bytes or model.dtype_bytes
    ]
    if model.latent:
        width = model.latent.kv_rank + model.latent.rope_size
        shape = {"block_size": size, "num_kv_heads": 1, "head_size": width, "dtype": dtype}
        return MLAAttentionSpec(**shape, cache_dtype_str="auto")  # an indexer's spec has none
    full = model.num_kv_heads, model.head_size
    heads, head_size = model.heads_of_windows() if group.window else full
    shape = {
        "block_size": size,
        "num_kv_heads": max(1, heads // num_gpus),
        "head_size": head_size,
        "dtype": dtype,
    }
    return (
        SlidingWindowSpec(**shape, sliding_window=group.window)
        if group.window
        else FullAttentionSpec(**shape)
    )
