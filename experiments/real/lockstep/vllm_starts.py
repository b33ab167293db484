"""Answers of the installed vLLM for a config.json on a named GPU, with a KV cache of given bytes.

Its own engine arguments make the configuration, its own model class is built on torch's meta
device, and its own planner divides the bytes among the layers' specs. No weight is loaded.
"""

import gc
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from testbed.core.specs import GpuSpec
from testbed.experiments.real.lockstep.installed_packages import check_required
from testbed.experiments.real.lockstep.named_gpu import install
from testbed.experiments.real.lockstep.start_checks import (
    check_blocks,
    check_context_parallel,
    check_graphs,
)
from testbed.experiments.real.lockstep.vllm_installation import logged_capacity

COLLECT_EVERY = 50  # starts: a collection takes longer than a start
HEADS = "mtp"  # speculation by layers of the model's own checkpoint
GROUPS: Mapping[str, str] = {  # of processes, in vLLM's parallel_state, by the size that they have
    "_TP": "tensor_parallel_size",
    "_PP": "pipeline_parallel_size",
    "_DCP": "decode_context_parallel_size",
    "_PCP": "prefill_context_parallel_size",
}


@dataclass(frozen=True)
class Start:
    """The numbers of a server that has started. weight_bytes: of all parameters on one GPU of each
    pipeline stage. longest_model_len: what --max-model-len auto gives.
    """

    num_blocks: int
    block_size: int
    kv_tokens: int
    max_concurrency: float
    max_model_len: int
    longest_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    caches_prefixes: bool
    plans_ahead: bool
    weight_bytes: tuple[int, ...]


class Starter:
    """Starts the installed vLLM on GPUs, in one process."""

    def __init__(self) -> None:
        check_required("vllm", "transformers")
        self._platform = install()
        self._arguments = _reader()
        self._is_distributed = False
        self._num_starts = 0

    def start(self, folder: Path, gpu: GpuSpec, num_bytes: int, words: str = "") -> Start | str:
        """The numbers for a folder with a config.json, a KV cache of num_bytes bytes on each GPU
        and options of `vllm serve`; if it does not start, the first line of vLLM's own error.
        """
        self._on(gpu)
        try:
            return self._started(folder, num_bytes, words)
        except Exception as error:  # whatever class vLLM raises, a start has failed
            return _reason(error)
        finally:
            self._num_starts += 1
            if self._num_starts % COLLECT_EVERY == 0:
                gc.collect()

    def _on(self, gpu: GpuSpec) -> None:
        """Let vLLM forget what it chose for another GPU."""
        from vllm.v1.attention import selector

        self._platform.sheet = gpu  # type: ignore[attr-defined]
        selector._cached_get_attn_backend.cache_clear()

    def _started(self, folder: Path, num_bytes: int, words: str) -> Start:
        from vllm.config import set_current_vllm_config
        from vllm.usage.usage_lib import UsageContext

        pool = f"--kv-cache-memory-bytes {num_bytes}"
        arguments = self._arguments(f"--model {shlex.quote(str(folder))} {pool} {words}")
        arguments.skip_tokenizer_init, arguments.load_format = True, "dummy"
        config = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
        later = range(1, config.parallel_config.pipeline_parallel_size)
        stages = [config, *(deepcopy(config) for _ in later)]
        with set_current_vllm_config(config):
            self._distribute()
            with _parallel(config.parallel_config):
                weights = [self._built_stage(*stage) for stage in enumerate(stages)]
                return _answered(stages, tuple(weights))

    def _built_stage(self, rank: int, config: Any) -> int:
        """The bytes of the parameters of a pipeline stage, whose layers are in its configuration
        then.
        """
        from vllm.config import set_current_vllm_config

        compiled = config.compilation_config.mode
        config.compilation_config.mode = 0  # nothing is compiled
        with set_current_vllm_config(config), _stage(rank):
            model = _built(config)
            check_context_parallel(config)
            self._platform.update_block_size_for_backend(config)  # type: ignore[attr-defined]
        config.compilation_config.mode = compiled
        return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())

    def _distribute(self) -> None:
        """One rank of one, which model classes ask for."""
        if self._is_distributed:
            return
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.distributed import init_distributed_environment, initialize_model_parallel

        with (
            NamedTemporaryFile(prefix="lockstep-") as file,
            set_current_vllm_config(VllmConfig()),  # of no model: with a group of experts
        ):
            init_distributed_environment(1, 0, f"file://{file.name}.store", 0, backend="gloo")
            initialize_model_parallel(1, 1)
            _manage_workspace()
        self._is_distributed = True
        gc.freeze()  # what was imported stays


def _reader() -> Callable[[str], Any]:
    """Reads words of a command as vLLM's own EngineArgs. Raises ValueError if its parser ends
    the program.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]
        def error(self, message: str) -> Any:
            raise ValueError(message)

    parser = EngineArgs.add_cli_args(Parser())
    return lambda words: EngineArgs.from_cli_args(parser.parse_args(shlex.split(words)))


@contextmanager
def _parallel(sizes: Any) -> Iterator[None]:
    """Let model classes see the first rank of groups of these sizes."""
    from vllm.distributed import parallel_state

    groups = {name: getattr(parallel_state, name, None) for name in GROUPS}
    for name, group in groups.items():
        if group is not None:
            group.world_size = getattr(sizes, GROUPS[name], 1)
            group.ranks = list(range(group.world_size))
    try:
        yield
    finally:
        for group in filter(None, groups.values()):
            group.world_size, group.ranks = 1, [0]


@contextmanager
def _stage(rank: int) -> Iterator[None]:
    """Let model classes see this rank of the pipeline's stages."""
    from vllm.distributed import parallel_state

    group = parallel_state._PP
    group.rank = group.rank_in_group = rank
    try:
        yield
    finally:
        group.rank = group.rank_in_group = 0


def _manage_workspace() -> None:
    """Stands for the workspace of sparse attention, without memory."""
    import torch
    from vllm.v1.worker.workspace import init_workspace_manager

    init_workspace_manager(torch.device("meta"))


def _built(config: Any) -> Any:
    """The model's class, with parameters of no memory."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._device import _device_constructors
    from vllm.model_executor.model_loader.utils import initialize_model

    class OnMeta(TorchFunctionMode):
        """Tensors of the GPU, and those of no named device, have no memory."""

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            named = dict(kwargs or {})
            device = named.get("device")
            is_of_gpu = isinstance(device, int) or str(device).startswith("cuda")
            if is_of_gpu or (device is None and function in constructors):
                named["device"] = "meta"
            return function(*args, **named)

    constructors = _device_constructors()
    with _default_dtype(config.model_config.dtype), OnMeta():
        model = initialize_model(config)
        speculative = config.speculative_config
        drafter = getattr(speculative, "draft_model_config", None)
        if drafter is not None and speculative.method == HEADS:
            initialize_model(config, model_config=drafter, prefix="drafter")
        return model


@contextmanager
def _default_dtype(dtype: Any) -> Iterator[None]:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _answered(stages: Sequence[Any], weight_bytes: tuple[int, ...]) -> Start:
    """The numbers of a server whose stages are built. The engine plans their caches together."""
    from vllm.v1.kv_cache_interface import MambaSpec
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    config, specs = stages[0], [get_kv_cache_spec(stage) for stage in stages]
    num_bytes = config.cache_config.kv_cache_memory_bytes
    if hasattr(config.cache_config, "get_resolved_kv_cache_layout"):
        _resolve_layout(stages, specs)
    caches = _planned(config, specs, num_bytes)
    for stage, specs_of_stage, cache in zip(stages, specs, caches, strict=True):
        check_blocks(stage, cache)
        check_graphs(stage, specs_of_stage, cache)
    kinds = [group.kv_cache_spec for group in caches[0].kv_cache_groups]
    sizes = [kind.block_size for kind in kinds if not isinstance(kind, MambaSpec)]
    tokens, concurrency = logged_capacity(config, caches[0])
    longest_model_len = _longest(config, specs, num_bytes)
    scheduler = config.scheduler_config
    return Start(
        num_blocks=caches[0].num_blocks,
        block_size=min(sizes),
        kv_tokens=tokens,
        max_concurrency=round(concurrency, 2),
        max_model_len=config.model_config.max_model_len,
        longest_model_len=longest_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        caches_prefixes=bool(config.cache_config.enable_prefix_caching),
        plans_ahead=bool(scheduler.async_scheduling),
        weight_bytes=weight_bytes,
    )


def _planned(config: Any, specs: Sequence[Mapping[str, Any]], num_bytes: int) -> Any:
    """vLLM's KVCacheConfig of each stage, whose layers have these specs."""
    of_stages, sizes = [dict(stage) for stage in specs], [num_bytes] * len(specs)
    try:
        from vllm.v1.core.kv_cache_planning import get_global_kv_cache_groups, get_kv_cache_configs
    except ImportError:  # 0.19, which has one layout and forms the groups itself
        from vllm.v1.core.kv_cache_utils import get_kv_cache_configs

        return get_kv_cache_configs(config, of_stages, sizes)
    groups = get_global_kv_cache_groups(config, of_stages)
    return get_kv_cache_configs(config, of_stages, sizes, groups)


def _resolve_layout(stages: Sequence[Any], specs: Sequence[Mapping[str, Any]]) -> None:
    """Let vLLM choose the order in which the cache is stored, of those that its backends have."""
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.v1.attention.backends.utils import (
        get_supported_kv_cache_layouts,
        resolve_kv_cache_layout,
    )

    names = []
    for stage in stages:
        layers = get_layers_from_vllm_config(stage, AttentionLayerBase)
        backends = {layer.get_attn_backend() for layer in layers.values()}
        names.append([layout.name for layout in get_supported_kv_cache_layouts(list(backends))])
    every = {name: spec for of_stage in specs for name, spec in of_stage.items()}
    for stage in stages:
        resolve_kv_cache_layout(stage, names, every.values())


def _longest(config: Any, specs: Sequence[Mapping[str, Any]], num_bytes: int) -> int:
    """The max_model_len that vLLM takes for "auto"."""
    before = config.model_config.original_max_model_len
    config.model_config.original_max_model_len = -1
    try:
        _planned(config, specs, num_bytes)
        return int(config.model_config.max_model_len)
    finally:
        config.model_config.original_max_model_len = before


def _reason(error: Exception) -> str:
    """The class of an error, and the first line of its text that is not empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = lines[1] if len(lines) > 1 and "validation error" in lines[0] else (lines or [""])[0]
    return f"{type(error).__name__}: {line}"
