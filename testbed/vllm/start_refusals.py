"""Options that vLLM refuses beside each other or for a model, before it looks at the memory.

Held against vLLM's own configuration by `testbed lockstep vllm --starts`.
"""

from typing import TYPE_CHECKING

from testbed.core.hf_schemes import MXFP4_BITS
from testbed.core.specs import GpuSpec, ModelSpec
from testbed.vllm.attention_backends import (
    AMPERE,
    BLACKWELL,
    HOPPER,
    WIDEST_HEAD,
    keeps_each_state,
)
from testbed.vllm.checkpoints import Quantization
from testbed.vllm.command import OFF, ON
from testbed.vllm.generations import capability_of, known_capability
from testbed.vllm.limits import Limits
from testbed.vllm.option_reader import OptionReader

if TYPE_CHECKING:
    from testbed.speculation.speculation import Speculation

CACHE_TYPE, DTYPE = "--kv-cache-dtype", "--dtype"
GPUS = "--tensor-parallel-size"
SHARDS, EXCHANGE = "--decode-context-parallel-size", "--dcp-comm-backend"
ONE_GROUP, EVENTS = "--disable-hybrid-kv-cache-manager", "--kv-events-config"
THRESHOLD = "--long-prefill-token-threshold"
CHUNKS, BUDGET = "--enable-chunked-prefill", "--max-num-batched-tokens"
E5M2, E4M3 = "fp8_e5m2", (None, "auto", "fp8_e4m3")
HALF, BFLOAT = ("half", "float16"), ("bfloat16",)
FULL = ("float", "float32")
SPARSE_HEADS, SHARED_HEADS = 31, 64  # of a GPU and of its shards that FlashMLA divides
CONTEXT_GIB = 0.52  # 78.66 of 79.18 GiB are free when vLLM starts on an H100, by its log
GRAPHS_GIB = (0.5, 1.9)  # of graphs captured after the pool, by logged start-ups
LARGE_SHARE = 0.95  # of the memory, up to which every GPU of 10 GiB or more has room for it


def check_context_shards(reader: OptionReader, model: ModelSpec, num_gpus: int) -> None:
    """Raise InputError for a decode context parallelism that vLLM refuses: of tensor parallel ranks
    only those divide sequences that would have copies of the same heads.
    """
    shards = reader.whole(SHARDS, 1)
    if num_gpus % shards:
        raise reader.does_not_start(
            SHARDS, f"--tensor-parallel-size {num_gpus} must be divisible by it"
        )
    if shards == 1:
        if reader.value(EXCHANGE) == "a2a" and not reader.release.takes_lone_exchange:
            raise reader.does_not_start(EXCHANGE, f"needs {SHARDS} above 1")
        return
    if model.latent is None:
        _check_shards_of_heads(reader, model, num_gpus, shards)
    elif model.latent.index_bytes:
        _check_shards_of_sparse(reader, model, num_gpus, shards)
    is_joined = bool(one_group_by(reader)) and len(model.groups) > 1
    if model.window is not None and not is_joined:
        raise reader.does_not_start(SHARDS, "layers with windows do not divide sequences")


def one_group_by(reader: OptionReader) -> str:
    """The option that gives layers which cache differently one group, so that each stores all
    tokens; empty: they have groups of their own. Raises InputError if groups are asked for beside
    an option that switches them off.
    """
    has_events = reader.value(EVENTS) is not None
    if has_events and not reader.release.has_groups_beside_events:
        if reader.value(ONE_GROUP) == OFF:
            raise reader.does_not_start(EVENTS, f"it switches {ONE_GROUP} on", f"give {ONE_GROUP}")
        return EVENTS
    return ONE_GROUP if reader.is_on(ONE_GROUP) else ""


def _check_shards_of_heads(
    reader: OptionReader, model: ModelSpec, num_gpus: int, shards: int
) -> None:
    copies, queries = num_gpus // model.num_kv_heads, model.num_heads // model.num_kv_heads
    if num_gpus <= model.num_kv_heads or shards > copies:
        raise reader.does_not_start(
            SHARDS,
            f"its {model.num_kv_heads} heads of K and V have {copies} copies on {num_gpus} GPUs",
        )
    if queries % shards:
        raise reader.does_not_start(SHARDS, f"{queries} queries a head are no multiple of it")


def _check_shards_of_sparse(
    reader: OptionReader, model: ModelSpec, num_gpus: int, shards: int
) -> None:
    """Raise InputError for shards that sparse attention does not read: Hopper's kernel takes FP8
    with scales, and few heads (FlashMLASparseMetadataBuilder).
    """
    generation = capability_of(reader.gpu)[0]
    if not reader.release.divides_sparse or generation not in (HOPPER, BLACKWELL):
        raise reader.refusal(SHARDS, "shards of sparse attention are not modelled", "leave it out")
    if generation == BLACKWELL:
        return
    if model.latent is None or not model.latent.packed_bytes:
        raise reader.does_not_start(SHARDS, "Hopper's sparse attention needs a cache of fp8 for it")
    heads = model.num_heads // num_gpus
    if heads > SPARSE_HEADS or heads * shards > SHARED_HEADS:
        raise reader.does_not_start(
            SHARDS,
            f"Hopper's sparse attention takes at most {SPARSE_HEADS} heads of a GPU and "
            f"{SHARED_HEADS} of its shards, and not {heads} and {heads * shards}",
        )


def check_divided_parts(reader: OptionReader, model: ModelSpec, num_gpus: int) -> None:
    """Raise InputError for parts that vLLM does not divide among num_gpus GPUs: the heads of a
    vision tower, which it makes for text alone too, and the groups of Mamba-2.
    """
    groups = model.states.num_groups if model.states else 0
    if model.vision_heads is not None and model.vision_heads % num_gpus:
        raise reader.does_not_start(
            GPUS, f"the {model.vision_heads} heads of the encoder of images must be divisible by it"
        )
    if groups > 1 and groups % num_gpus:
        raise reader.does_not_start(
            GPUS, f"the {groups} groups of Mamba-2's layers must be divisible by it"
        )


def _type_of_auto(gpu: GpuSpec, model: ModelSpec, quantization: Quantization) -> str | None:
    """The type that vLLM computes in unless the command names one; None: bfloat16, or not known.

    A GPU that is not known is taken for one that has bfloat16: most of these types change nothing.
    """
    capability = known_capability(gpu)
    if capability is not None and capability[0] < AMPERE:
        return FULL[1] if model.needs_range else HALF[1]
    is_half = quantization.dtype in HALF and not model.needs_range
    return quantization.dtype if is_half else None


def check_types(reader: OptionReader, model: ModelSpec, quantization: Quantization) -> None:
    """Raise InputError for types of weights and of cached values that no backend combines."""
    cached, computed = reader.value(CACHE_TYPE), reader.value(DTYPE)
    if computed in (None, "auto"):
        computed = _type_of_auto(reader.gpu, model, quantization)
    of_experts = model.experts.bits if model.experts else None
    is_of_bfloat16 = quantization.needs_bfloat16 or of_experts == MXFP4_BITS
    if is_of_bfloat16 and computed in (*HALF, *FULL):
        raise reader.does_not_start(DTYPE, "quantized weights of this type need bfloat16")
    if model.latent is not None and computed in FULL:
        raise reader.does_not_start(DTYPE, "no backend of latent attention computes in float32")
    if model.weight_bits is not None and computed in FULL:
        raise reader.refusal(DTYPE, "quantized weights beside float32 are not modelled")
    if model.latent is not None and cached == E5M2:
        raise reader.does_not_start(CACHE_TYPE, "no backend of latent attention reads fp8_e5m2")
    is_alike = reader.value("--quantization") == "fp8" and not reader.release.quantises_apart
    if cached == E5M2 and (quantization.scales_cache or is_alike):
        raise reader.does_not_start(CACHE_TYPE, "the checkpoint may have scales of another FP8")
    is_packed = model.latent is not None and bool(model.latent.packed_bytes)
    if is_packed and capability_of(reader.gpu)[0] == HOPPER and cached in E4M3:
        raise reader.does_not_start(
            CACHE_TYPE, "Hopper's sparse attention reads no fp8_e4m3", f"give {CACHE_TYPE} fp8"
        )
    if model.head_size > WIDEST_HEAD and cached == E5M2 and reader.release.has_long_blocks:
        raise reader.refusal(CACHE_TYPE, "its blocks for such wide heads are not modelled")
    is_sparse = model.latent is not None and model.latent.index_bytes > 0
    for option, value in ((DTYPE, computed), (CACHE_TYPE, cached)):
        if is_sparse and value in HALF and not reader.release.has_half_sparse:
            raise reader.does_not_start(option, "sparse attention has no backend of float16")
    if reader.release.checks_cache_type:
        _check_same_type(reader, cached, computed)


def _check_same_type(reader: OptionReader, cached: str | None, computed: str | None) -> None:
    """Refuse a cache of 16 bits of another type than the weights', whose type `auto` has."""
    if cached in BFLOAT and computed in (*HALF, *FULL):
        raise reader.does_not_start(CACHE_TYPE, f"is incompatible with {DTYPE} {computed}")
    if cached in HALF and computed not in HALF:
        raise reader.does_not_start(
            CACHE_TYPE, "is incompatible with weights in bfloat16", f"{DTYPE} float16, or auto"
        )


def check_prompts(reader: OptionReader, model: ModelSpec, *, caches: bool) -> None:
    """Raise InputError for limits of prompts that vLLM refuses."""
    release = reader.release
    threshold = reader.number(THRESHOLD)
    is_long = threshold is not None and threshold > model.max_len
    if is_long and release.checks_threshold:
        raise reader.does_not_start(
            THRESHOLD, f"cannot be greater than max_model_len, {model.max_len:,}"
        )
    needs_chunks = caches and model.states is not None and not keeps_each_state(model, release)
    if needs_chunks and not reader.is_on(CHUNKS, default=True):
        raise reader.does_not_start(CHUNKS, "prefixes of states are cached by chunks of prompts")


def check_drafts(reader: OptionReader, limits: Limits, speculation: "Speculation | None") -> None:
    """Raise InputError for a drafter on the CPU that is asked to be scheduled ahead, for adapters
    beside drafts of which a batch does not hold those of all sequences, and for drafts that leave
    nothing of a batch.
    """
    if speculation is None:
        return
    tokens = limits.max_num_seqs * (1 + speculation.max_drafts)
    if reader.is_on("--enable-lora") and limits.max_num_batched_tokens < tokens:
        raise reader.does_not_start(BUDGET, f"drafts beside --enable-lora need {tokens:,}")
    if not speculation.drafts_on_gpu and reader.value("--async-scheduling") == ON:
        raise reader.does_not_start(
            "--async-scheduling", "n-gram drafts of the CPU are scheduled synchronously"
        )
    _check_drafters_batch(reader, limits, speculation.num_inserted)


def _check_drafters_batch(reader: OptionReader, limits: Limits, num_inserted: int) -> None:
    """Raise InputError for a budget of which a drafter's own tokens leave nothing."""
    release = reader.release
    taken = num_inserted * (1 if release.admits_with_drafts else limits.max_num_seqs)
    if limits.max_num_batched_tokens > taken:
        return
    problem = f"the drafter's batch takes {taken:,} of these, which leaves nothing"
    if release.checks_drafters_batch:
        raise reader.does_not_start(BUDGET, problem, "give more")
    unchecked = f"vLLM {release.number} starts, with larger batches than the drafter has memory for"
    raise reader.refusal(BUDGET, f"{problem}; {unchecked}: not modelled", "give more")


def graphs_may_not_fit(left_gib: float) -> bool:
    """True if CUDA graphs captured after the pool may need more than a share of the memory leaves
    beside CUDA's context.
    """
    return CONTEXT_GIB + GRAPHS_GIB[1] > left_gib


def check_free_memory(reader: OptionReader, visible_gib: float, utilization: float) -> None:
    """Raise InputError for a share of the GPU's memory that is not free when vLLM starts, for its
    own context has a part of it (request_memory).
    """
    free = visible_gib - CONTEXT_GIB
    if utilization > LARGE_SHARE and utilization * visible_gib > free:
        raise reader.does_not_start(
            "--gpu-memory-utilization",
            f"of the {visible_gib:.2f} GiB of each {reader.gpu.name} CUDA's context has about "
            f"{CONTEXT_GIB} (at most {free / visible_gib:.3f} is free)",
        )
