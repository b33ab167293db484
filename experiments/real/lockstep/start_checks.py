"""vLLM's checks of a server whose KV cache is planned: those that its model runner makes before it
captures CUDA graphs.
"""

from collections.abc import Mapping
from inspect import signature
from types import SimpleNamespace
from typing import Any


def check_context_parallel(config: Any) -> None:
    """Let vLLM refuse layers whose backend does not divide sequences among GPUs."""
    from vllm.v1.worker.cp_utils import check_attention_cp_compatibility

    check_attention_cp_compatibility(config)


def check_blocks(config: Any, cache: Any) -> None:
    """Let vLLM refuse blocks that the kernels of no backend of a group divide."""
    from vllm.v1.worker.utils import prepare_kernel_block_sizes

    layers = _layers(config)
    groups = [_by_backend(layers, group) for group in cache.kv_cache_groups]
    prepare_kernel_block_sizes(cache, groups)


def _by_backend(layers: Mapping[str, Any], group: Any) -> list[Any]:
    """The layers of a group of the cache by backend and spec, as a model runner has them."""
    of_layers = getattr(group.kv_cache_spec, "kv_cache_specs", {})  # of layers that differ
    kinds = dict[Any, list[str]]()
    for name in group.layer_names:
        spec = of_layers.get(name, group.kv_cache_spec)
        kinds.setdefault((layers[name].get_attn_backend(), spec), []).append(name)
    return [
        SimpleNamespace(backend=backend, kv_cache_spec=spec, layer_names=names)
        for (backend, spec), names in kinds.items()
    ]


def check_graphs(config: Any, specs: Mapping[str, Any], cache: Any) -> None:
    """Let vLLM resolve the CUDA graphs that it captures; it refuses more sequences than states."""
    drafts = getattr(config, "num_speculative_tokens", 0)
    values = {
        "uniform_decode_query_len": 1 + drafts,
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "kv_cache_config": cache,
        "max_num_reqs": config.scheduler_config.max_num_seqs,
        "use_v2_model_runner": True,
    }
    resolve = getattr(config.compilation_config, "resolve_cudagraph_mode_and_sizes", None)
    if resolve is None:
        return  # 0.19 captures graphs for fewer sequences instead
    names = signature(resolve).parameters
    known = {name: value for name, value in values.items() if name in names}
    resolve(*_support(config, specs), **known)


def _support(config: Any, specs: Mapping[str, Any]) -> tuple[Any, str | None]:
    """The weakest support of CUDA graphs among the backends of the layers, and whose it is."""
    from vllm.v1.attention.backend import AttentionCGSupport

    weakest: tuple[Any, str | None] = (AttentionCGSupport.ALWAYS, None)
    layers = _layers(config)
    for name, spec in specs.items():
        backend = layers[name].get_attn_backend()
        support = backend.get_builder_cls().get_cudagraph_support(config, spec)
        if support.value < weakest[0].value:
            weakest = support, backend.__name__
    return weakest


def _layers(config: Any) -> Mapping[str, Any]:
    """The layers of the model that have a cache, by name."""
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    layers: Mapping[str, Any] = get_layers_from_vllm_config(config, AttentionLayerBase)
    return layers
