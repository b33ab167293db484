"""The installed vLLM: its Scheduler, built from our configuration, without a GPU or a model's
weights.
"""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from testbed.core.errors import InputError
from testbed.core.slots import ceil_div
from testbed.experiments.real.lockstep.installed_packages import check_class, importing, version_of
from testbed.memory.groups.grouped import Grouped
from testbed.memory.groups.grouped_output_caching import GroupedOutputCaching
from testbed.memory.groups.page_rules import OnePageSize
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import MemoryPolicy
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.run.build import Setup
from testbed.run.parts import Part
from testbed.sched.orders import ByPriority, FirstCome
from testbed.sched.preemption import Recompute, RecomputeSingleSwapGroup
from testbed.sched.vllm_v1 import AsyncVllmV1, VllmV1
from testbed.speculation.draft_model import DraftModel
from testbed.speculation.heads import Heads
from testbed.speculation.ngram import NGram
from testbed.speculation.ngram_gpu import NGramGpu
from testbed.vllm.releases import DEFAULT

HOW = (
    "pip install torch==2.13.0 'kvcache-testbed[lockstep]' && pip install --no-deps "
    f"vllm=={DEFAULT.number}.0 "
    "(or a later release; install also the packages that an import error names)"
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 128,
    "torch_dtype": "float16",
    "rms_norm_eps": 1e-5,
}
SCHEDULER = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "long_prefill_token_threshold",
    "enable_chunked_prefill",
    "scheduler_reserve_full_isl",
)


ORDERS: Mapping[type, str] = {FirstCome: "fcfs", ByPriority: "priority"}
METHODS: Mapping[type, str] = {
    NGram: "ngram",
    NGramGpu: "ngram_gpu",
    DraftModel: "draft_model",
    Heads: "mtp",
}


class _SpeculativeConfig:
    """Fields of vLLM's SpeculativeConfig that a Scheduler reads; the class cannot be made without a
    draft model's folder. All but these two values, its methods and its defaults, is vLLM's own.
    """

    def __init__(self, method: str, num_speculative_tokens: int) -> None:
        self.method = method
        self.num_speculative_tokens = num_speculative_tokens

    def __getattr__(self, name: str) -> Any:
        from vllm.config import SpeculativeConfig

        of_class = getattr(SpeculativeConfig, name)
        return of_class.__get__(self) if hasattr(of_class, "__get__") else of_class


@dataclass(frozen=True, slots=True)
class Options:
    """The names are vLLM's if it has one. num_blocks counts its null block; caches:
    enable_prefix_caching. windows: of each group of layers, as in kv_cache_config. policy:
    --scheduling-policy. drafter: vLLM's method of speculation, with num_speculative_tokens; empty:
    none.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    scheduler_reserve_full_isl: bool = True
    asynchronous: bool = False
    ignore_eos: bool = True
    caches: bool = False
    windows: tuple[int | None, ...] = (None,)
    mamba_cache_mode: str = "none"
    prefill_checkpoint_alignment: int | None = None
    drafter: str = ""
    policy: str = "fcfs"
    num_speculative_tokens: int = 0


def options_of(setup: Setup) -> Options:
    """The options of the same server. Raises InputError for a part or a value that vLLM V1 does not
    have.
    """
    scheduler = _vllms_scheduler(setup)
    _check_parts(setup)
    _check_values(setup)
    config, block_size = setup.config, setup.scheduler.memory.block_size or 1
    parameters = config.scheduler.parameters
    num_blocks, windows = _blocks_and_windows(setup, block_size)
    return Options(
        num_blocks=num_blocks,
        windows=windows,
        **_states(setup.scheduler.policy, windows),
        block_size=block_size,
        max_model_len=setup.model.max_len,
        asynchronous=scheduler.plans_ahead,
        caches=setup.scheduler.memory.publishes is not None,
        policy=_order(scheduler),
        **_speculation(scheduler),
        **{name: parameters[name] for name in (*SCHEDULER, "ignore_eos") if name in parameters},
    )


def _vllms_scheduler(setup: Setup) -> VllmV1:
    """The scheduler. InputError unless its class is vLLM's own."""
    scheduler, remedy = setup.scheduler, "scheduler=vllm_v1 or scheduler=vllm_v1_async"
    check_class("scheduler", scheduler, (VllmV1, AsyncVllmV1), "is not vLLM's", remedy)
    assert isinstance(scheduler, VllmV1)
    return scheduler


def _order(scheduler: VllmV1) -> str:
    """vLLM's scheduling policy of the scheduler's order."""
    problem = "vLLM V1 serves first come, or by priority"
    check_class("order", scheduler.order, ORDERS, problem, "order=first_come or order=priority")
    return ORDERS[type(scheduler.order)]


def _speculation(scheduler: VllmV1) -> dict[str, Any]:
    """vLLM's method of the scheduler's speculation, and the drafts of an iteration."""
    speculation = scheduler.drafter
    if speculation is None:
        return {}
    if not speculation.keeps_slots:
        raise InputError(
            key="speculation.keeps_slots",
            value="false",
            problem="vLLM V1 keeps the slots of rejected drafts",
            remedy="speculation.keeps_slots=true",
        )
    remedy = "speculation=ngram, ngram_gpu, draft_model or heads"
    check_class("speculation", speculation, METHODS, "vLLM V1 has no such drafter", remedy)
    return {
        "drafter": METHODS[type(speculation)],
        "num_speculative_tokens": speculation.max_drafts,
    }


def _blocks_and_windows(setup: Setup, block_size: int) -> tuple[int, tuple[int | None, ...]]:
    """The blocks of the pool with the null block, and the windows of the groups that share them."""
    policy = setup.scheduler.policy
    if not isinstance(policy, Grouped):
        return setup.pool.num_slots // block_size + 1, (None,)
    if not isinstance(policy.pages, OnePageSize):
        raise InputError(
            key="policy",
            problem="lockstep compares groups in pages of one size",
            remedy="policy.page_rule=one_page_size",
        )
    windows = tuple(column.window if column.width else 0 for column in policy.pages.columns)
    return policy.pages.total // policy.pages.page_units + 1, windows


def _states(policy: MemoryPolicy, windows: Sequence[int | None]) -> dict[str, Any]:
    """vLLM's options of how the prefixes of states are cached."""
    if 0 not in windows or not isinstance(policy, GroupedOutputCaching):
        return {}
    if policy.states is None:
        return {"mamba_cache_mode": "all"}
    alignment = policy.states.chunks.alignment
    return {"mamba_cache_mode": "align", "prefill_checkpoint_alignment": alignment}


def _check_parts(setup: Setup) -> None:
    """Refuse a policy, a preemption rule or an eviction order that vLLM V1 lacks."""
    scheduler, eviction = setup.scheduler, setup.config.policy.parameters.get("eviction")
    check_class(
        "policy",
        scheduler.policy,
        (Paged, OutputCaching, Grouped, GroupedOutputCaching),
        "vLLM V1 has no such memory",
        "policy=paged, prefix_caching_v1, or of a model with windows grouped, grouped_caching_v1",
    )
    rules, remedy = (Recompute, RecomputeSingleSwapGroup), "preemption=recompute"
    check_class("preemption", scheduler.preemption, rules, "vLLM V1 recomputes", remedy)
    if eviction is not None and eviction.name != Part(Lru).name:
        raise InputError(
            key="policy.eviction",
            problem="vLLM V1 evicts what was used least recently",
            remedy="eviction@policy.eviction=lru",
        )


def _check_values(setup: Setup) -> None:
    """Refuse a watermark, several sequences of a request and a registered prefix."""
    workload = setup.config.workload
    watermark = setup.config.policy.parameters.get("watermark", 0.01)
    if watermark != 0:
        raise InputError(
            key="policy.watermark",
            value=f"{watermark:g}",
            problem="vLLM V1 keeps no share of the pool free",
            remedy="policy.watermark=0",
        )
    if workload.num_seqs != 1 or workload.beam:
        raise InputError(
            key="workload.num_seqs",
            value=workload.num_seqs,
            problem="vLLM V1 schedules every sample as a request of its own",
            remedy="workload.num_seqs=1",
        )
    if setup.workload.rows.registered_prefix != 0:
        raise InputError(
            key="the trace",
            problem="has a registered prefix: vLLM V1 has none",
            remedy="give another trace",
        )


def installed_release() -> str:
    """The version of the installed vLLM. Raises InputError if there is none."""
    return version_of("vllm", HOW)


def make_scheduler(options: Options, offloading: Mapping[str, Any] | None = None) -> Any:
    """The installation's Scheduler, or its AsyncScheduler, with a pool of options.num_blocks blocks
    and one group.

    offloading: of its OffloadingConnector: `host_blocks` of the CPU cache, and other values of its
    kv_connector_extra_config; None: no connector.
    """
    _import_quietly()
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.structured_output import StructuredOutputManager

    config = _vllm_config(options)
    config.cache_config.num_gpu_blocks = options.num_blocks
    if offloading is not None:
        config.kv_transfer_config = _offloading_config(options, offloading)
    if options.drafter:
        config.speculative_config = _SpeculativeConfig(
            options.drafter, options.num_speculative_tokens
        )
        config._set_max_num_scheduled_tokens()
    cache = kv_cache_config(
        options.num_blocks,
        options.block_size,
        options.windows,
        options.max_model_len,
        mode=options.mamba_cache_mode,
        alignment=options.prefill_checkpoint_alignment,
    )
    return (AsyncScheduler if options.asynchronous else Scheduler)(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=max(group.kv_cache_spec.block_size for group in cache.kv_cache_groups),
    )


def _offloading_config(options: Options, offloading: Mapping[str, Any]) -> Any:
    from vllm.config import KVTransferConfig

    values = dict(offloading)
    cache = kv_cache_config(options.num_blocks, options.block_size)
    page = cache.kv_cache_groups[0].kv_cache_spec.page_size_bytes
    aligned = ceil_div(page, 4096) * 4096  # as vLLM rounds a chunk up
    values["cpu_bytes_to_use"] = values.pop("host_blocks") * aligned
    return KVTransferConfig(
        kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=values
    )


def kv_cache_config(
    num_blocks: int,
    block_size: int,
    windows: tuple[int | None, ...] = (None,),
    max_model_len: int = 0,
    *,
    mode: str = "none",
    alignment: int | None = None,
) -> Any:
    """A KV cache of one group for each of `windows`: tokens of a sliding window, None for full
    attention, or 0 for a state, of which one block is enough for max_model_len tokens unless
    prefixes are cached. mode: mamba_cache_mode. alignment: prefill_checkpoint_alignment.
    """
    _import_quietly()
    import torch
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        SlidingWindowSpec,
    )

    shape = {"block_size": block_size, "num_kv_heads": 1, "head_size": 16, "dtype": torch.float16}
    longest = ceil_div(max_model_len, block_size) * block_size

    def spec(window: int | None) -> Any:
        if window == 0:
            return _state_spec(longest if mode == "none" else block_size, mode, alignment)
        if window is None:
            return FullAttentionSpec(**shape)
        return SlidingWindowSpec(**shape, sliding_window=window)

    groups = [KVCacheGroupSpec([f"layer{i}"], spec(window)) for i, window in enumerate(windows)]
    return KVCacheConfig(
        num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups, **_retention()
    )


def _state_spec(block_size: int, mode: str, alignment: int | None) -> Any:
    """vLLM's specification of a state of one byte, which belongs to block_size tokens."""
    import torch
    from vllm.v1.kv_cache_interface import MambaSpec

    form: dict[str, Any] = {"shapes": ((1,),), "dtypes": (torch.uint8,)}
    if alignment is not None:
        form |= {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": alignment}
    return MambaSpec(block_size=block_size, mamba_cache_mode=mode, **form)


def _retention() -> dict[str, Any]:
    """The server's default of prefix_cache_retention_interval, in releases that have it."""
    from vllm.config import CacheConfig

    name = "prefix_cache_retention_interval"
    return {name: getattr(CacheConfig(), name)} if hasattr(CacheConfig, name) else {}


def logged_capacity(config: Any, cache: Any) -> tuple[int, float]:
    """The two numbers of the lines that vLLM logs of a KV cache: tokens and concurrency."""
    from vllm.v1.core import kv_cache_utils

    if hasattr(kv_cache_utils, "get_kv_cache_capacity"):
        tokens, concurrency = kv_cache_utils.get_kv_cache_capacity(config, cache)
        return int(tokens), float(concurrency)
    with patch.object(kv_cache_utils, "logger") as logger:  # what it reports, it only logs
        kv_cache_utils._report_kv_cache_config(config, cache)
    (_, size, *_), (_, _, concurrency, *_) = [call.args for call in logger.info_once.mock_calls]
    return int(size.replace(",", "")), float(concurrency)


def block_hasher(block_size: int, num_behind: int = 0) -> Any:
    """vLLM's function that computes the hashes of a request's full blocks, which cover num_behind
    tokens behind each.
    """
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    hash_fn = get_hash_fn_by_name("sha256")
    init_none_hash(hash_fn)
    behind = [num_behind] if num_behind else []  # no argument of 0.19
    return get_request_block_hasher(block_size, hash_fn, *behind)


def update(
    scheduler: Any, output: Any, sampled: Mapping[str, list[int]], connector_output: Any
) -> None:
    """Let the scheduler see an iteration's results. sampled: the output tokens of each request that
    was scheduled. connector_output: vLLM's KVConnectorOutput, or None.
    """
    from vllm.v1.outputs import ModelRunnerOutput

    places = {name: place for place, name in enumerate(sampled)}
    results = ModelRunnerOutput([*sampled], places, [*sampled.values()])
    results.kv_connector_output = connector_output
    scheduler.update_from_output(output, results)


def make_request(
    request_id: int,
    tokens: list[int],
    max_tokens: int,
    stop_token: int | None,
    hasher: Any,
    priority: int = 0,
) -> Any:
    """A request of the installed vLLM; its output ends at stop_token, or after max_tokens."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    stops = [] if stop_token is None else [stop_token]
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, stop_token_ids=stops)
    return Request(
        str(request_id),
        tokens,
        params,
        None,
        arrival_time=float(request_id),
        priority=priority,
        block_hasher=hasher,
    )


def _import_quietly() -> None:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # the answer is on stdout
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("PYTHONHASHSEED", "0")
    logging.getLogger("vllm").setLevel(logging.ERROR)
    with importing("vllm", HOW):
        import vllm.v1.core.sched.async_scheduler  # noqa: F401


def _vllm_config(options: Options) -> Any:
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig

    length: dict[str, Any] = {"max_model_len": options.max_model_len}
    scheduler = {name: getattr(options, name) for name in SCHEDULER}
    with TemporaryDirectory(prefix="lockstep-") as folder:
        text = json.dumps({**CONFIG, "max_position_embeddings": options.max_model_len})
        Path(folder, "config.json").write_text(text, encoding="utf-8")
        return VllmConfig(
            model_config=ModelConfig(
                folder, tokenizer=folder, skip_tokenizer_init=True, dtype="float16", **length
            ),
            scheduler_config=SchedulerConfig(
                **scheduler,
                **length,
                async_scheduling=options.asynchronous,
                policy=options.policy,
                is_encoder_decoder=False,
            ),
            cache_config=CacheConfig(
                block_size=options.block_size,
                enable_prefix_caching=options.caches,
                mamba_cache_mode=options.mamba_cache_mode,
            ),
            device_config=DeviceConfig("cpu"),
        )
