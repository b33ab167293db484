"""The scheduler of the SGLang that is installed, driven on a CPU: no process, no model, no GPU.

Its own are get_next_batch_to_run and all that it calls, the allocators and the radix tree. Replaced
are images, kernels and networks (ABSENT), the collaborators that a text-only GPU never asks, and
the forward pass with what its results do to a request.
"""

import logging
import os
import random
import sys
import warnings
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from testbed.core.errors import InputError
from testbed.experiments.real.lockstep.installed_packages import (
    AbsentModules,
    check_class,
    importing,
    version_of,
)
from testbed.memory.paged.paged import Paged
from testbed.memory.radix.radix import Radix
from testbed.run.build import Setup
from testbed.sched.sglang import SGLang
from testbed.sched.sglang_order import SEED

HOW = (
    "pip install torch==2.13.0 'kvcache-testbed[sglang-lockstep]' && pip install --no-deps "
    "sglang==0.5.23 dill compressed-tensors loguru gguf"
)
ABSENT = ("torchvision", "sgl_kernel", "flashinfer")
STOP = 1  # the token that ends an output
VOCABULARY = 1 << 40


@dataclass(frozen=True, slots=True)
class Options:
    """The names and the defaults are SGLang's if it has one. total_tokens: of the pool;
    decay_steps: SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS.
    """

    total_tokens: int
    page_size: int
    max_running_requests: int
    max_prefill_tokens: int
    context_length: int
    chunked_prefill_size: int | None = None
    enable_mixed_chunk: bool = False
    prefill_max_requests: int | None = None
    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    decay_steps: int = 600
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    retraction_policy: str = "length"
    ignore_eos: bool = False
    disable_radix_cache: bool = False
    radix_eviction_policy: str = "lru"
    radix_eviction_policy_config: Mapping[str, int] | None = None
    overlaps: bool = True

    @property
    def reads_priorities(self) -> bool:
        """True if the requests' priorities decide anything."""
        return self.enable_priority_scheduling or self.radix_eviction_policy == "priority"


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A host pool of num_pages pages behind the device's; when it is written, by SGLang's name."""

    num_pages: int
    hicache_write_policy: str


def options_of(setup: Setup) -> Options:
    """The options of the same server. Raises InputError for a part that SGLang does not have."""
    scheduler, policy = setup.scheduler, setup.scheduler.policy
    if not isinstance(scheduler, SGLang):
        raise InputError(
            key="scheduler",
            value=type(scheduler).__name__,
            problem="is not SGLang's",
            remedy="scheduler=sglang or scheduler=sglang_no_overlap",
        )
    problem = "SGLang has no such memory"
    check_class("policy", policy, (Radix, Paged), problem, "policy=radix or paged")
    if float(setup.config.policy.parameters.get("watermark", 0)):
        raise InputError(
            key="policy.watermark", problem="SGLang keeps no share of the pool free (0)"
        )
    given, of_policy = setup.config.scheduler.parameters, setup.config.policy.parameters
    shared = (name for name in Options.__dataclass_fields__ if name in given)
    return Options(
        **{name: given[name] for name in shared},
        total_tokens=policy.usage().total,
        page_size=scheduler.page_size,
        decay_steps=given["new_token_ratio_decay_steps"],
        disable_radix_cache=isinstance(policy, Paged),
        radix_eviction_policy=of_policy.get("radix_eviction_policy", "lru"),
        radix_eviction_policy_config=of_policy.get("radix_eviction_policy_config"),
        overlaps=scheduler.plans_ahead,
    )


def installed_release() -> str:
    """The version of the installed SGLang. Raises InputError if there is none."""
    return version_of("sglang", HOW)


def import_quietly() -> None:
    """Import the scheduler; raises InputError if that fails."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.filterwarnings("ignore", module="sglang")
    logging.getLogger("sglang").setLevel(logging.CRITICAL)
    with importing("sglang", HOW):
        if "sglang.srt.managers.scheduler" not in sys.modules:
            absent = AbsentModules(ABSENT)
            import transformers

            transformers.utils.is_torchvision_available()  # it looks for torchvision itself
            sys.meta_path.append(absent)
        import sglang.srt.managers.scheduler  # noqa: F401


def make_request(
    request_id: int,
    tokens: Sequence[int],
    max_new_tokens: int | None,
    priority: int | None,
    *,
    ignore_eos: bool,
) -> Any:
    """A request of the installed SGLang; STOP ends its output, or max_new_tokens."""
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    params = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=ignore_eos, temperature=0)
    params.normalize(None)
    return Req(
        str(request_id),
        "",
        array("q", tokens),
        params,
        vocab_size=VOCABULARY,
        eos_token_ids={STOP},
        priority=priority,
    )


def make_scheduler(options: Options, hierarchy: Hierarchy | None = None) -> Any:
    """The installation's Scheduler with a pool of options.total_tokens tokens. hierarchy: its host
    pool; the copies of its controller's `l2_transfer_engine` are the caller's.
    """
    import_quietly()
    from sglang.srt.managers.scheduler import Scheduler

    os.environ["SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS"] = str(options.decay_steps)
    random.seed(SEED)  # which schedule_policy=random draws from
    arguments = _install_arguments(options, hierarchy)
    scheduler = Scheduler.__new__(Scheduler)
    params = _give_memory(scheduler, options, hierarchy)
    _give_state(scheduler, options)
    _give_collaborators(scheduler)
    if hierarchy is not None:
        from sglang.srt.mem_cache.pool_host import common

        scheduler.enable_hierarchical_cache = True
        common._cuda_host_register = lambda *buffer: None  # nothing is copied
        scheduler.tree_cache.init_hicache(arguments, params)
    return scheduler


def _install_arguments(options: Options, hierarchy: Hierarchy | None) -> Any:
    from sglang.srt.runtime_context import get_context

    below = dict[str, Any](enable_hierarchical_cache=False)
    if hierarchy is not None:
        # The pool has a page more than the ratio says.
        pages = options.total_tokens // options.page_size
        below = dict(
            enable_hierarchical_cache=True,
            hicache_ratio=(hierarchy.num_pages - 0.5) / pages,
            hicache_write_policy=hierarchy.hicache_write_policy,
            hicache_mem_layout="layer_first",
        )
    arguments = get_context().override_server_args(
        **below,
        page_size=options.page_size,
        chunked_prefill_size=options.chunked_prefill_size or -1,
        max_prefill_tokens=options.max_prefill_tokens,
        prefill_max_requests=options.prefill_max_requests,
        enable_mixed_chunk=options.enable_mixed_chunk,
        disable_radix_cache=options.disable_radix_cache,
        radix_eviction_policy=options.radix_eviction_policy,
        radix_eviction_policy_config=options.radix_eviction_policy_config,
        schedule_policy=options.schedule_policy,
        schedule_conservativeness=options.schedule_conservativeness,
        enable_priority_scheduling=options.enable_priority_scheduling,
        schedule_low_priority_values_first=options.schedule_low_priority_values_first,
        retraction_policy=options.retraction_policy,
        pp_max_micro_batch_size=options.max_running_requests,
        attention_backend="torch_native",
        device="cpu",
    )
    arguments.install()
    return arguments


def _give_memory(scheduler: Any, options: Options, hierarchy: Hierarchy | None) -> Any:
    """The pools and the tree, as a tensor-parallel worker of one GPU makes them; its parameters.
    A pool without a host pool behind it stores nothing.
    """
    import torch
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    rows = ReqToTokenPool(
        size=options.max_running_requests,
        max_context_len=max(options.context_length, options.total_tokens) + 8,
        device="cpu",
        enable_memory_saver=False,
    )
    cache: Any = SimpleNamespace(device="cpu", dtype=torch.float16, store_dtype=torch.float16)
    if hierarchy is not None:
        cache = _smallest_cache(options)
    allocator = _allocator(options, cache)
    scheduler.req_to_token_pool, scheduler.token_to_kv_pool_allocator = rows, allocator
    params = CacheInitParams(
        disable=options.disable_radix_cache,
        req_to_token_pool=rows,
        token_to_kv_pool_allocator=allocator,
        page_size=options.page_size,
        eviction_policy=options.radix_eviction_policy,
        eviction_policy_config=options.radix_eviction_policy_config,
        chunked_prefill_size=options.chunked_prefill_size,
        tree_components=(ComponentType.FULL,),
    )
    scheduler.tree_cache = UnifiedRadixCache(params)
    return params


def _allocator(options: Options, cache: Any) -> Any:
    """The allocator of tokens, or of pages, over a cache."""
    import torch
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator

    if options.page_size == 1:
        return TokenToKVPoolAllocator(
            options.total_tokens, dtype=torch.float16, device="cpu", kvcache=cache, need_sort=False
        )
    return PagedTokenToKVPoolAllocator(
        options.total_tokens, options.page_size, torch.float16, "cpu", cache, need_sort=False
    )


def _smallest_cache(options: Options) -> Any:
    """The K and V of one head of one layer."""
    import torch
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    return MHATokenToKVPool(
        size=options.total_tokens,
        page_size=options.page_size,
        dtype=torch.float16,
        head_num=1,
        head_dim=2,
        layer_num=1,
        device="cpu",
        enable_memory_saver=False,
    )


def _give_state(scheduler: Any, options: Options) -> None:
    """State that __init__ and the event loops set of a scheduler without requests."""
    from sglang.srt.disaggregation.utils import DisaggregationMode
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.schedule_policy import SchedulePolicy
    from sglang.srt.managers.scheduler_components.new_token_ratio_tracker import (
        NewTokenRatioTracker,
    )
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    chunk = options.chunked_prefill_size
    order = options.enable_priority_scheduling, options.schedule_low_priority_values_first
    vars(scheduler).update(
        policy=SchedulePolicy(options.schedule_policy, scheduler.tree_cache, False, *order),
        new_token_ratio_tracker=NewTokenRatioTracker.from_config(),
        enable_priority_scheduling=options.enable_priority_scheduling,
        schedule_low_priority_values_first=options.schedule_low_priority_values_first,
        page_size=options.page_size,
        chunked_prefill_size=chunk,
        is_mixed_chunk=options.enable_mixed_chunk and chunk is not None,
        max_prefill_tokens=options.max_prefill_tokens,
        max_running_requests=options.max_running_requests,
        max_req_len=min(options.context_length, options.total_tokens) - 1,
        max_total_num_tokens=options.total_tokens,
        kv_shard_widening=1,
        waiting_queue=[],
        running_batch=ScheduleBatch(reqs=[], batch_is_full=False),
        result_queue=deque(),
        enable_overlap=options.overlaps,
        enable_skip_finishing_decode=options.overlaps,
        spec_algorithm=SpeculativeAlgorithm.NONE,
        disaggregation_mode=DisaggregationMode.NULL,
        model_config=SimpleNamespace(
            vocab_size=VOCABULARY, is_encoder_decoder=False, is_multimodal=False
        ),
        device="cpu",
    )


# Options and parts of other servers than one text-only GPU
NONE = [
    "chunked_req",
    "dllm_config",
    "hisparse_coordinator",
    "last_batch",
    "lora_drainer",
    "max_new_tokens_limit",
    "max_queued_requests",
    "min_free_slots_delayer",
    "prefill_delayer",
    "recv_skipper",
    "dynamic_chunk_sizer",
    "scheduler_stage_metrics",
    "sliding_window_size",
    "truncation_align_size",
    "decode_offload_manager",
    "_pending_chunked_abort_req",
]
FALSE = [
    "abort_on_priority_when_disabled",
    "enable_hierarchical_cache",
    "enable_hicache_storage",
    "enable_hisparse",
    "enable_lmcache",
    "enable_lora",
    "enable_overlap_mlx",
    "enable_priority_preemption",
    "enable_unified_cache_external_linker",
    "is_hybrid_swa",
    "require_mlp_sync",
]
ZERO = [
    "forward_ct",
    "max_prefill_bs",
    "prefill_decode_interval",
    "prefill_decode_interval_min_bs",
    "priority_scheduling_preemption_threshold",
    "processed_tokens_counter",
    "_prefill_decode_interval_remaining",
]


def _unchanged(batch: Any, **options: Any) -> Any:
    return batch


def _give_collaborators(scheduler: Any) -> None:
    """Stand-ins for objects that such a server never uses, or finds empty."""
    for names, value in ((NONE, None), (FALSE, False), (ZERO, 0)):
        vars(scheduler).update(dict.fromkeys(names, value))
    nothing: Callable[..., int] = lambda *args, **options: 0  # noqa: E731
    scheduler.dp_attn_adapter = SimpleNamespace(
        maybe_prepare_mlp_sync_batch=_unchanged, maybe_convert_decode_to_extend=_unchanged
    )
    scheduler.ngram_embedding_manager = SimpleNamespace(prepare_for_forward=_unchanged)
    scheduler.grammar_manager = SimpleNamespace(has_waiting_grammars=lambda: False)
    scheduler.beam_coordinator = SimpleNamespace(pending_member_rows=nothing, retire_group=nothing)
    scheduler.load_inquirer = SimpleNamespace(_get_num_pending_tokens=nothing)
    scheduler.metrics_reporter = SimpleNamespace(num_retracted_reqs=0, enable_metrics=False)
    scheduler.send_abort_output = nothing
    runner = SimpleNamespace(attn_backend=object(), prefill_aware_swa=False)
    scheduler.tp_worker = SimpleNamespace(model_runner=runner)


def next_batch(scheduler: Any, *, overlaps: bool) -> Any:
    """The next batch, as the event loops ask for it; result_queue holds the one whose results are
    not known.
    """
    plan = scheduler.get_next_batch_to_run(
        running_batch=scheduler.running_batch, last_batch=scheduler.last_batch
    )
    scheduler.running_batch = plan.running_batch
    scheduler.last_batch = batch = plan.batch_to_run
    scheduler.forward_ct += batch is not None
    if batch is not None:
        scheduler.processed_tokens_counter += batch.extend_num_tokens or 0  # run_batch
    scheduler.result_queue.clear()
    if batch is not None and overlaps:
        scheduler.result_queue.append((batch.copy(), None))
    return batch


def finish(scheduler: Any, batch: Any, sample: Callable[[Any], int]) -> None:
    """Applies the results of a batch to its requests, in the order of SGLang's processor: a token
    more, then the end and its release, or the checkpoint of a prompt. sample: the next token.
    """
    from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache

    is_extend = batch.forward_mode.is_extend()
    decoding = set(batch.decoding_reqs or ()) if is_extend else set(batch.reqs)
    allocator = scheduler.token_to_kv_pool_allocator
    allocator.free_group_begin()
    for req in batch.reqs:
        if req.finished() or req.is_retracted:
            continue
        if req.inflight_middle_chunks > 0:
            req.inflight_middle_chunks -= 1
            continue
        req.output_ids.append(sample(req))
        req.update_finish_state()
        if req.finished():
            release_kv_cache(req, scheduler.tree_cache, checkpoint=True)
        elif req not in decoding:
            checkpoint_kv_cache(req, scheduler.tree_cache)
    allocator.free_group_end()
