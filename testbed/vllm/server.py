"""The server that a command starts: its model, its limits and its pool, or vLLM's own refusal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from testbed.core.divided_weights import columns_problem
from testbed.core.errors import DoesNotStart, InputError
from testbed.core.layer_order import num_alone
from testbed.core.specs import GIB, GpuSpec, ModelSpec
from testbed.speculation.drafter_memory import DrafterMemory, drafter_memory
from testbed.vllm.adapters import adapter_bytes
from testbed.vllm.attention_backends import (
    BLOCK_SIZE,
    block_multiple,
    block_size_of,
    cache_problem,
    checkpoint_alignment,
    with_cached_states,
    with_enough_range,
    with_preferred_cache,
)
from testbed.vllm.checkpoints import EVERY_NAME, UNASKED, Quantization
from testbed.vllm.chosen_backend import OPTION as ATTENTION
from testbed.vllm.chosen_backend import chosen_backend
from testbed.vllm.command import OFF, Command
from testbed.vllm.connector import LMCACHE, LowerCache, check_connector, connector_of
from testbed.vllm.limits import Limits
from testbed.vllm.lmcache import lmcache_of
from testbed.vllm.memory import Terms
from testbed.vllm.offloading import offloading_of
from testbed.vllm.option_reader import OptionReader
from testbed.vllm.pages import Pages, pages_of
from testbed.vllm.pool_sizing import BYTES, Pool, PoolSizing
from testbed.vllm.releases import DEFAULT, Release
from testbed.vllm.scale_groups import check_scale_groups
from testbed.vllm.stages import STAGES, Stage, check_alone, stages_of
from testbed.vllm.start_refusals import (
    SHARDS,
    check_context_shards,
    check_divided_parts,
    check_drafts,
    check_prompts,
    check_types,
    one_group_by,
)
from testbed.vllm.window_blocks import block_with_windows

if TYPE_CHECKING:
    from testbed.speculation.speculation import Speculation

ORDERS = ("fcfs", "priority")  # of requests that wait
LARGEST_BYTES, LARGE_BYTES = 160 * GIB, 70 * GIB
# Tokens and sequences that nothing sets, by the GPU.
LARGEST, LARGE, SMALL = (16384, 1024), (8192, 1024), (2048, 256)
KV_BYTES = {"auto": None, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "float16": 2, "bfloat16": 2}
OTHER_KV_TYPES = (
    "fp8_inc",
    "fp8_ds_mla",
    "nvfp4_ds_mla",
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
    "octave_k3v4",
    "octave_k3v3",
    "octave_k3v3_compact",
    "ultraquant_4bit",
    "int4_per_token_head",
    "int8_per_token_head",
    "fp8_per_token_head",
    "nvfp4",
    "nvfp4_4over6",
)
DTYPE_BYTES = {"auto": None, "half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4}
STATE_BYTES = 4  # of float32
AUTO = ("auto", "-1")
NO_WINDOWS = "--disable-sliding-window"
NO_DRAFTER = DrafterMemory()
ENCODER = "--mm-encoder-tp-mode"
DIVIDED_ENCODERS = ("gemma", "mistral", "llava")  # models whose encoder vLLM divides in any mode
ACTIVE = "--max-num-active-seqs"
REPLICAS = "--data-parallel-size"
WHOLE_EXPERTS = "--enable-expert-parallel"
DELTA_KERNEL = "--gdn-prefill-backend"


class Speculative(NamedTuple):
    """The drafter of a command: `speculation`, and the words by which it is an option of ours.

    notes: assumptions on its shape, if the command's model does not have them.
    """

    speculation: "Speculation"
    words: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Server:
    """The server of a command's options, and what follows from them.

    option: our option with the model's shape. cached_bytes: of a cached value, as its file says;
    None: those of the model. values: the options. notes: what was read and changes nothing.
    offloading: the cache below the device; None: there is none. stages: of a pipeline, one without;
    pool and pages are those of the stage whose pool is the smallest. asked_len: the longest
    sequence before a drafter with fewer positions. remarks: assumptions on the model's file.
    """

    release: Release
    model: ModelSpec
    gpu: GpuSpec
    limits: Limits
    pool: Pool
    pages: Pages
    caches_prefixes: bool
    utilization: float
    values: Mapping[str, str]
    stages: Sequence[Stage]
    option: str = ""
    cached_bytes: int | None = None
    notes: tuple[str, ...] = ()
    speculative: Speculative | None = None
    drafter: DrafterMemory = NO_DRAFTER
    offloading: LowerCache | None = None
    asked_len: int = 0
    remarks: tuple[str, ...] = ()


class Checkpoint(NamedTuple):
    """A model's shape, and what its files say besides. model_type: that of the config.json; None:
    the shape ships. text_type: that of its text; empty: not known. num_positions: of the rope;
    None: the shape's longest sequence. quantization: that of its weights; empty: what the shape
    says.
    """

    shape: ModelSpec
    model_type: str | None = None
    text_type: str = ""
    num_positions: int | None = None
    quantization: Quantization = Quantization()


def server_with(
    command: Command,
    checkpoint: Checkpoint,
    sheet: GpuSpec,
    release: Release = DEFAULT,
    of: Terms | None = None,
    speculation: "Speculation | None" = None,
) -> Server:
    """The server of a command with this model on this GPU, whatever names it gives."""
    reader = OptionReader(command, release, sheet)
    shape, model_type, text_type, num_positions, quantization = checkpoint
    model = _with_encoder(reader, _model_of(reader, shape, quantization), model_type)
    limits = _limits(reader, model)
    caches = _caches(reader, model)
    _check(reader, model, limits, quantization, text_type, caches=caches)
    asked_len = model.max_len
    model = _beside_drafter(reader, model, limits.num_gpus, speculation)
    drafter = drafter_memory(speculation, model, limits.num_gpus)
    pages = _pages_of(reader, model, limits, speculation, drafter, caches=caches)
    adapters = adapter_bytes(reader, shape, limits.num_gpus, model_type) / GIB
    parts = stages_of(reader, model, pages), pages, _utilization(reader), drafter, adapters
    sizing = PoolSizing(reader, *parts, num_positions or shape.max_len, quantization, of)
    pool = sizing.pool(limits)
    pages = pool.stage.pages(pages)
    model = _of_longest(reader, model, pages, pool.num_checked)
    offloading = _offloading(reader, pages, limits, caches=caches)
    check_alone(reader, drafter=drafter.weight_bytes, adapters=adapters, offloading=offloading)
    sizing.check(limits)
    return Server(
        release=release,
        model=model,
        gpu=sheet,
        limits=limits,
        pool=pool,
        pages=pages,
        caches_prefixes=caches,
        utilization=sizing.utilization,
        values=command.values,
        stages=sizing.stages,
        drafter=drafter,
        offloading=offloading,
        asked_len=asked_len,
    )


def _model_of(reader: OptionReader, shape: ModelSpec, quantization: Quantization) -> ModelSpec:
    """The shape as the command serves it on a GPU."""
    model = _on_gpu(reader, shape)
    check_types(reader, model, quantization)
    if reader.is_on("--language-model-only"):
        model = replace(model, masks_images=None, vision_params=None)
    return model


def _with_encoder(reader: OptionReader, model: ModelSpec, model_type: str | None) -> ModelSpec:
    """The model whose encoder of images is whole on every GPU if the command divides images, not
    weights, among them, and vLLM's class does so.
    """
    mode = reader.value(ENCODER) or "weights"
    if mode not in ("weights", "data"):
        raise reader.refusal(ENCODER, "is unknown", "choose from weights, data")
    is_divided = (model_type or model.name).startswith(DIVIDED_ENCODERS)
    return model if mode == "weights" or is_divided else replace(model, vision_heads=None)


def _on_gpu(reader: OptionReader, shape: ModelSpec) -> ModelSpec:
    """The shape with the types that the options and the GPU give it."""
    served = _served(reader, shape)
    if reader.one_of("--dtype", DTYPE_BYTES) is None:
        served = with_enough_range(served, reader.gpu)
    return with_preferred_cache(served, reader.gpu, reader.release)


def _check(
    reader: OptionReader,
    model: ModelSpec,
    limits: Limits,
    quantization: Quantization,
    text_type: str,
    *,
    caches: bool,
) -> None:
    """Raise InputError for a model that vLLM does not divide so, or has no backend for, and for
    limits of its prompts that vLLM refuses.
    """
    num_gpus = limits.num_gpus
    _check_shares(reader, model, limits)
    check_divided_parts(reader, model, num_gpus)
    check_scale_groups(reader, model, limits, quantization, text_type)
    if problem := cache_problem(model, reader.gpu, reader.release):
        raise DoesNotStart(key=reader.place("model"), value=model.name, problem=problem)
    check_context_shards(reader, model, num_gpus)
    if reader.is_on(WHOLE_EXPERTS) and model.experts is None and not num_alone(model):
        raise reader.does_not_start(WHOLE_EXPERTS, "the model has no experts")
    check_prompts(reader, model, caches=caches)


def _pages_of(
    reader: OptionReader,
    model: ModelSpec,
    limits: Limits,
    speculation: "Speculation | None",
    drafter: DrafterMemory,
    *,
    caches: bool,
) -> Pages:
    """The pages of the model's layers and the drafter's, with states of each draft if there are
    any, and those that are cached.
    """
    check_drafts(reader, limits, speculation)
    drafted = _drafted(model, speculation)
    block_size = _block_size(reader, drafted, limits.num_gpus)
    is_ahead = plans_ahead(reader.values, speculation)
    under_way = reader.release.tokens_under_way(
        limits.max_num_batched_tokens,
        plans_ahead=is_ahead,
        num_stages=limits.num_stages,
        is_dense=model.experts is None,
    )
    pages = _pages(reader, model, limits.num_gpus, block_size, under_way)
    if pages.is_grouped and speculation is not None:
        pages = _with_drafts(reader, pages, drafted, model, limits, speculation)
    pages = replace(pages, num_shards=reader.whole(SHARDS, 1))
    pages = with_drafter(pages, drafter, limits.num_gpus)
    return with_cached_states(pages, model, reader.gpu, reader.release) if caches else pages


def _offloading(
    reader: OptionReader, pages: Pages, limits: Limits, *, caches: bool
) -> LowerCache | None:
    """The cache below the device. Raises InputError for one beside an option that it is not
    modelled with.
    """
    connector = connector_of(reader)
    if connector is None:
        return None
    check_connector(reader, connector, pages, caches=caches)
    cache_of = lmcache_of if connector.name == LMCACHE else offloading_of
    return cache_of(reader, connector, pages, limits.num_gpus)


def _of_longest(reader: OptionReader, model: ModelSpec, pages: Pages, num_blocks: int) -> ModelSpec:
    """The model with the longest sequence that it serves; raises InputError if num_blocks pages do
    not hold it.
    """
    if reader.value("--max-model-len") in AUTO:
        model = replace(model, max_len=pages.longest(num_blocks, model.max_len))
    _check_one_sequence(reader, model, pages, num_blocks)
    return model


def _caches(reader: OptionReader, model: ModelSpec) -> bool:
    """True if prefixes are cached; with states, by default, only in some releases (vLLM's
    ModelConfig.is_prefix_caching_supported).
    """
    has_states = model.states is not None and model.states.state_bytes > 0
    default = reader.release.caches_states or not has_states
    return reader.is_on("--enable-prefix-caching", default=default)


def plans_ahead(values: Mapping[str, str], speculation: "Speculation | None") -> bool:
    """True if a command's scheduler is asynchronous: unless an option says otherwise, or drafts are
    made on the CPU.
    """
    waits = speculation is not None and not speculation.drafts_on_gpu
    return values.get("--async-scheduling") != OFF and not waits


def _pages(
    reader: OptionReader, model: ModelSpec, num_gpus: int, block_size: int, under_way: int
) -> Pages:
    """The pages of the KV cache, as the manager of KV groups or of one group has them."""
    option = one_group_by(reader)
    if model.states and option:
        raise reader.refusal(option, "layers of states need the hybrid manager, which is off")
    return pages_of(model, num_gpus, block_size, is_hybrid=not option, tokens_under_way=under_way)


def limits_with(
    command: Command, shape: ModelSpec, sheet: GpuSpec, release: Release = DEFAULT
) -> Limits:
    """The limits of a command with this shape on this GPU, whether or not it starts."""
    reader = OptionReader(command, release, sheet)
    return _sizes(reader, _served(reader, shape))


def _served(reader: OptionReader, shape: ModelSpec) -> ModelSpec:
    """The shape with the types and the longest sequence that a release and the options give it."""
    shape = _without_windows(reader, _of_types(reader, of_states(shape, reader.release)))
    longest, usual = lengths_of(shape, reader.release)
    if shape.rope is not None and shape.rope.is_incomplete and reader.release.multiplies_yarn:
        raise DoesNotStart(
            key=reader.place("model"),
            value=shape.name,
            problem=(
                f"{reader.release.number} needs original_max_position_embeddings of its YaRN rope"
            ),
        )
    if reader.value("--max-model-len") in (None, *AUTO):
        return replace(shape, max_len=usual)
    wanted = reader.whole("--max-model-len", longest)
    if wanted > longest:
        raise reader.does_not_start(
            "--max-model-len",
            f"longer than the model's {longest:,} positions (max_position_embeddings)",
        )
    return replace(shape, max_len=wanted)


def _without_windows(reader: OptionReader, shape: ModelSpec) -> ModelSpec:
    """The shape whose layers read all tokens if windows are switched off (chunks stay), which caps
    sequences at their size.
    """
    if shape.window is None or not reader.is_on(NO_WINDOWS):
        return shape
    if reader.release.multiplies_yarn:
        raise reader.refusal(
            NO_WINDOWS,
            f"sequences without windows in vLLM {reader.release.number} are not modelled",
        )
    if shape.window.is_required:
        raise reader.does_not_start(NO_WINDOWS, "its layers need the size of their windows")
    if shape.has_uneven_heads:
        raise reader.does_not_start(NO_WINDOWS, "its layers with windows have heads of their own")
    max_len = min(shape.max_len, shape.window.size)
    return replace(shape, window=None, layer_order=None, rope=None, max_len=max_len)


def lengths_of(shape: ModelSpec, release: Release) -> tuple[int, int]:
    """The longest sequence that --max-model-len may ask for, and that which nothing asks for."""
    if shape.rope is None:
        return shape.max_len, shape.max_len
    if release.multiplies_yarn and shape.rope.yarn_len:
        return shape.rope.yarn_len, shape.rope.yarn_len
    return shape.max_len, shape.rope.usual_len or shape.max_len


def of_states(shape: ModelSpec, release: Release) -> ModelSpec:
    """The shape whose states have the type that a release gives them if no file says it."""
    states = shape.states
    if states is None or not states.untyped_values or not release.has_wide_states:
        return shape
    wider = states.untyped_values * (STATE_BYTES - shape.dtype_bytes)
    return replace(shape, states=replace(states, state_bytes=states.state_bytes + wider))


def _of_types(reader: OptionReader, shape: ModelSpec) -> ModelSpec:
    """The shape with the types of weights and of cached values that the options give it. States of
    another type than the model's keep it.
    """
    dtype_bytes = reader.one_of("--dtype", DTYPE_BYTES)
    if shape.needs_range and reader.value("--dtype") in ("half", "float16"):
        raise reader.does_not_start(
            "--dtype", f"{shape.name} is numerically unstable in float16 (bfloat16 starts)"
        )
    if dtype_bytes not in (None, shape.dtype_bytes):
        if shape.states is not None:
            raise reader.refusal(
                "--dtype", "states of another type are not modelled", "leave it out"
            )
        shape = replace(shape, dtype_bytes=dtype_bytes)
    kv_bytes = reader.one_of("--kv-cache-dtype", KV_BYTES, OTHER_KV_TYPES)
    shape = shape if kv_bytes is None else replace(shape, kv_dtype_bytes=kv_bytes)
    return _quantised(reader, shape)


def _quantised(reader: OptionReader, shape: ModelSpec) -> ModelSpec:
    """The shape whose weights vLLM turns into FP8 when it loads them (--quantization fp8). Other
    names are those of a quantised checkpoint's own method (check_checkpoint compares them).
    """
    quantization = reader.value("--quantization")
    if quantization in UNASKED or (quantization == "fp8" and shape.fp8_products):
        return shape
    bits = shape.weight_bits or (shape.experts.bits if shape.experts else None)
    if quantization in EVERY_NAME and bits is not None:
        return shape
    if quantization != "fp8" or bits is not None:
        raise reader.refusal(
            "--quantization",
            "has no counterpart: only fp8 of a checkpoint that is not quantised is modelled",
            "fp8 has as many bytes as fp8_per_tensor; else give a config.json with its "
            "quantization_config",
        )
    return replace(shape, weight_bits=8, fp8_products=True)


def _usual_limits(gpu: GpuSpec, release: Release) -> tuple[int, int]:
    """Tokens and sequences of a batch that a release takes on a GPU."""
    if release.has_largest_limits and gpu.memory_bytes >= LARGEST_BYTES:
        return LARGEST
    return LARGE if gpu.memory_bytes >= LARGE_BYTES and "a100" not in gpu.name else SMALL


def _limits(reader: OptionReader, model: ModelSpec) -> Limits:
    """The limits of a batch. Raises InputError if vLLM refuses them, or its order."""
    if reader.value("--scheduling-policy") not in (None, *ORDERS):
        raise reader.refusal(
            "--scheduling-policy", "is unknown", f"choose from {', '.join(ORDERS)}"
        )
    limits = _sizes(reader, model)
    num_seqs, budget = limits.max_num_seqs, limits.max_num_batched_tokens
    if budget < num_seqs:
        raise reader.does_not_start(
            "--max-num-batched-tokens",
            f"{budget:,} is below max_num_seqs, {num_seqs:,}",
        )
    if reader.whole(ACTIVE, 1) > num_seqs:
        raise reader.does_not_start(ACTIVE, f"is above max_num_seqs, {num_seqs:,}")
    if not _is_chunked(reader) and budget < model.max_len:
        raise reader.does_not_start(
            "--max-num-batched-tokens",
            f"{budget:,} is below max_model_len, {model.max_len:,}, and chunked prefill is off",
        )
    return limits


def _is_chunked(reader: OptionReader) -> bool:
    return reader.is_on("--enable-chunked-prefill", default=True)


def _sizes(reader: OptionReader, model: ModelSpec) -> Limits:
    """The limits of a batch, by vLLM's rules if the command does not give them."""
    tokens, seqs = _usual_limits(reader.gpu, reader.release)
    mode = reader.value("--performance-mode") or "balanced"
    if mode not in ("balanced", "throughput"):
        raise reader.refusal("--performance-mode", "changes CUDA graphs and is not modelled")
    factor = 2 if mode == "throughput" else 1
    num_seqs = reader.whole("--max-num-seqs", factor * seqs)
    budget = factor * tokens if _is_chunked(reader) else max(factor * tokens, model.max_len)
    budget = reader.whole("--max-num-batched-tokens", min(budget, num_seqs * model.max_len))
    if reader.value("--max-num-seqs") is None:
        num_seqs = min(num_seqs, budget)
    num_replicas = reader.whole(REPLICAS, 1)
    return Limits(
        num_seqs,
        budget,
        reader.whole("--tensor-parallel-size", 1),
        reader.is_on(WHOLE_EXPERTS),
        num_stages=reader.whole(STAGES, 1),
        num_expert_ranks=num_replicas if model.experts is not None else 1,
    )


def _check_shares(reader: OptionReader, model: ModelSpec, limits: Limits) -> None:
    shares = limits.num_gpus, limits.num_expert_parts
    if problem := model.heads_problem(limits.num_gpus) or columns_problem(model, *shares):
        raise DoesNotStart(
            key=reader.place("--tensor-parallel-size"),
            value=limits.num_gpus,
            problem=problem,
        )


def _beside_drafter(
    reader: OptionReader, model: ModelSpec, num_gpus: int, speculation: "Speculation | None"
) -> ModelSpec:
    """The model with sequences that its drafter serves, in a release that has no others. Raises
    InputError for a drafter whose heads the GPUs of the model do not divide, and for a whole model
    beside one of images in a release that has no such drafts.
    """
    drafter = None if speculation is None else speculation.drafter(model)
    if speculation is None or drafter is None:
        return model
    is_whole = speculation.num_inserted > 0
    if is_whole and model.vision_params and not reader.release.drafts_for_images:
        raise reader.does_not_start(
            "--speculative-config",
            "a whole model does not draft for one of images",
            "--language-model-only starts",
        )
    if problem := drafter.heads_problem(num_gpus):
        raise reader.does_not_start("--speculative-config", f"{problem} ({drafter.name})")
    if is_whole:
        _check_whole_drafter(reader, model, drafter)
    longest = drafter.max_len if reader.release.caps_by_drafter else model.max_len
    return replace(model, max_len=min(model.max_len, longest))


def _check_whole_drafter(reader: OptionReader, model: ModelSpec, drafter: ModelSpec) -> None:
    """Raise InputError for a drafter whose pages are not modelled: one with windows or states."""
    if drafter.window is not None or drafter.states is not None:
        raise reader.refusal(
            "--speculative-config",
            f"a drafter with windows or states ({drafter.name}) is not modelled",
            "leave it out to see the server without it",
        )


def _block_size(reader: OptionReader, model: ModelSpec, num_gpus: int) -> int:
    """The tokens of a block; with states, as many as make a block no smaller than a state."""
    gpu, release = reader.gpu, reader.release
    _check_delta_kernel(reader, model)
    backend = chosen_backend(reader, model)
    size = None
    if reader.value("--block-size") is not None:
        size = reader.whole("--block-size", BLOCK_SIZE)
        if not _takes_any_block(reader, model):
            _check_block_size(reader, size, block_multiple(model, gpu, release, backend))
        size = block_with_windows(reader, model, size, backend)
    caches = _caches(reader, model)
    return block_size_of(
        model, num_gpus, gpu, release, caches=caches, requested=size, backend=backend
    )


def _takes_any_block(reader: OptionReader, model: ModelSpec) -> bool:
    """True if FlexAttention may serve the model in blocks that no other kernel takes."""
    others = (model.latent, model.states, model.has_sinks, model.caps_logits, model.masks_images)
    is_chosen = any(reader.value(name) is not None for name in (ATTENTION, SHARDS))
    is_plain = not any(others) and model.kv_dtype_bytes is None and not model.has_uneven_heads
    return reader.release.has_any_block and is_plain and not is_chosen


def _check_delta_kernel(reader: OptionReader, model: ModelSpec) -> None:
    """Raise InputError for a prefill kernel of gated delta nets that exports no states, in place of
    one that does.
    """
    gpu = reader.gpu
    exports = (checkpoint_alignment(model, gpu, reader.release) or 1) > 1
    if exports and reader.value(DELTA_KERNEL) not in (None, "flashinfer"):
        raise reader.refusal(
            DELTA_KERNEL,
            f"exports no states, by which blocks and pools follow on {gpu.name}; not modelled",
            "leave it out",
        )


def _check_block_size(reader: OptionReader, size: int, smallest: int) -> None:
    """Raise InputError for a block that the kernels do not take, `smallest` times a number."""
    if size % smallest:
        raise reader.does_not_start(
            "--block-size", f"the model's attention kernels take multiples of {smallest}"
        )


def block_size_with(
    command: Command, shape: ModelSpec, sheet: GpuSpec, release: Release = DEFAULT
) -> int:
    """The tokens of a block of a command with this shape on this GPU, whether or not it starts."""
    reader = OptionReader(command, release, sheet)
    model = _on_gpu(reader, shape)
    num_gpus = reader.whole("--tensor-parallel-size", 1)
    return _block_size(reader, model, num_gpus)


def _utilization(reader: OptionReader) -> float:
    requested = reader.number("--gpu-memory-utilization")
    utilization = reader.release.utilization if requested is None else requested
    if not 0 < utilization <= 1:
        raise reader.refusal("--gpu-memory-utilization", "must be above 0 and at most 1")
    return utilization


def _drafted(model: ModelSpec, speculation: "Speculation | None") -> ModelSpec:
    """The model with layers that draft, and with states that have room for drafts."""
    if speculation is None:
        return model
    return speculation.deeper(model) or speculation.with_draft_states(model)


def _with_drafts(
    reader: OptionReader,
    pages: Pages,
    drafted: ModelSpec,
    model: ModelSpec,
    limits: Limits,
    by: "Speculation",
) -> Pages:
    """The pages that groups share, with the states of each draft; heads are layers of full
    attention beside the model's. Raises InputError for a model that drafts.
    """
    if by.deeper(model) is None and by.drafter(model) is not None:
        raise InputError(
            key=reader.place("--speculative-config"),
            problem="a model that drafts is not modelled beside windows or states",
            remedy="leave it out to see the server without it",
        )
    shared = pages_of(
        drafted,
        limits.num_gpus,
        pages.block_size,
        tokens_under_way=pages.tokens_under_way,
    )
    return replace(shared, draft_pages=by.max_drafts)


def with_drafter(pages: Pages, drafter: DrafterMemory, num_gpus: int) -> Pages:
    """The pages with the drafter's K and V of each token beside the model's. Pages that groups of
    layers share have the drafter's layers already.
    """
    if pages.is_grouped:
        return pages
    more_bytes = pages.block_size * drafter.token_bytes // num_gpus
    return replace(pages, page_bytes=pages.page_bytes + more_bytes)


def _check_one_sequence(
    reader: OptionReader, model: ModelSpec, pages: Pages, num_blocks: int
) -> None:
    needed = pages.of_sequence(model.max_len)
    if needed > num_blocks:
        have, want = (count * pages.page_bytes / GIB for count in (max(0, num_blocks), needed))
        longest = pages.longest(num_blocks, model.max_len)
        option = reader.named("--max-model-len")
        shorter = f"{option} {longest} or less starts, {longest} with no memory to spare"
        raise DoesNotStart(
            key=reader.place("the server"),
            problem=(
                f"to serve one request of max_model_len {model.max_len:,}, "
                f"{want:.2f} GiB of KV cache are needed, which is larger than the available "
                f"{have:.2f} GiB"
            ),
            remedy=shorter if longest > 0 else _larger_pool(reader),
        )


def _larger_pool(reader: OptionReader) -> str:
    """The remedy for a pool that holds nothing: bytes may be meant as GiB."""
    remedy, given = "give a larger pool", reader.number(BYTES)
    if given is None or given >= GIB:
        return remedy
    return f"{remedy}: {BYTES} {given:.0f} is {given:,.0f} bytes; did you mean {given:.0f}G?"


def limits_and_utilization(
    command: Command, shape: ModelSpec, sheet: GpuSpec
) -> tuple[ModelSpec, Limits, float]:
    """The model as it is served, the limits and the utilization of a command with this shape on
    this GPU, whether or not it starts.
    """
    reader = OptionReader(command, DEFAULT, sheet)
    model = _served(reader, shape)
    return model, _limits(reader, model), _utilization(reader)
