"""The tokens of a block of vLLM's KV cache: by the attention backend, which follows from the GPU's
generation and the model, and by the states that a block must be no smaller than.

Held against vLLM's own classes by `testbed lockstep vllm --configs`.
"""

from dataclasses import replace
from math import lcm

from testbed.core.slots import ceil_div
from testbed.core.specs import GpuSpec, ModelSpec
from testbed.vllm.generations import capability_of
from testbed.vllm.pages import Pages
from testbed.vllm.releases import Release

BLOCK_SIZE = 16
AMPERE, HOPPER, BLACKWELL, SMALL_BLACKWELL = 8, 9, 10, 12
FP8_CAPABILITY = (8, 9)  # the first whose Triton kernels read FP8
FLASHINFER_HEADS = (64, 128, 256)  # values of a head that FlashInfer's kernels read
FLASH_MLA, FLASHINFER_MLA = 64, 32  # tokens that these backends take
LATENT_SIZES = ((128, 64, 128), (192, 64, 256), (64, 64, 128))  # of heads without and with position
SPARSE_ROW = 576  # values of a token that sparse kernels read, but for Hopper's of 16 bits
PACKED_ROW = 656  # bytes of a token in FP8 with its scales, and 16-bit positions (fp8_ds_mla)
IMAGE_BLOCK = 64  # tokens that Triton's and FlashInfer's kernels both take
GATED_DELTA_CHUNK = 64  # tokens, at whose multiples FlashInfer's prefill kernel exports a state
WIDEST_HEAD, WIDE_HEAD_BLOCK = 256, 64  # of FlashAttention 3; tokens that its successor takes
FLASH_BLOCK = 128  # of FlashAttention 4 for heads of 256, on Blackwell
FLASH_HEAD = 128  # values of the longest head whose FP8 it reads there
AUTO, FLASH_ATTENTION = "auto", "FLASH_ATTN"  # values of --attention-backend


def kernel_block(model: ModelSpec, gpu: GpuSpec, release: Release, backend: str = AUTO) -> int:
    """The tokens of a block that a model's attention backend prefers on a GPU: the one that vLLM
    chooses there, FlashInfer's on Blackwell, unless the command names one (`backend`).
    """
    if model.latent is None:
        return _block_of_heads(model, gpu, release, backend)
    generation = capability_of(gpu)[0]
    if model.latent.index_bytes:
        return FLASH_MLA
    if generation == BLACKWELL:
        return FLASHINFER_MLA
    is_small = model.kv_dtype_bytes == 1
    return FLASH_MLA if generation == HOPPER and is_small else BLOCK_SIZE


def with_preferred_cache(model: ModelSpec, gpu: GpuSpec, release: Release) -> ModelSpec:
    """The model with the type of cached values that vLLM prefers for it on a GPU."""
    latent = model.latent
    if latent is None:
        return model
    prefers = latent.prefers_fp8 and release.prefers_fp8
    if prefers and model.kv_dtype_bytes is None and capability_of(gpu)[0] == BLACKWELL:
        return replace(model, kv_dtype_bytes=1)
    generation = capability_of(gpu)[0]
    is_small = generation == HOPPER and model.kv_dtype_bytes == 1
    if latent.index_bytes and (is_small or generation == SMALL_BLACKWELL):
        return replace(model, latent=replace(latent, packed_bytes=PACKED_ROW))
    return model


def with_enough_range(model: ModelSpec, gpu: GpuSpec) -> ModelSpec:
    """The model in the type that vLLM computes in on a GPU unless the command names one: float32
    if the GPU has no bfloat16 and the range of float16 is too small for the model.
    """
    if model.needs_range and capability_of(gpu)[0] < AMPERE:
        return replace(model, dtype_bytes=4)
    return model


def block_multiple(model: ModelSpec, gpu: GpuSpec, release: Release, backend: str = AUTO) -> int:
    """The tokens of which a block that the command gives must be a multiple."""
    usual = kernel_block(model, gpu, release, backend)
    if model.latent is None:
        return usual if backend == FLASH_ATTENTION else BLOCK_SIZE
    takes_half = capability_of(gpu)[0] == BLACKWELL and not model.latent.index_bytes
    return min(usual, FLASHINFER_MLA) if takes_half else usual


def cache_problem(model: ModelSpec, gpu: GpuSpec, release: Release) -> str:
    """The reason why no attention backend of a GPU reads a model's cached values; empty if one
    does.
    """
    if problem := _latent_problem(model, gpu, release):
        return problem
    is_small = model.kv_dtype_bytes == 1 and release.checks_fp8_cache
    if not is_small or capability_of(gpu) >= FP8_CAPABILITY:
        return ""
    is_odd = model.head_size not in FLASHINFER_HEADS
    masks = model.masks_images and release.has_long_blocks
    is_special = model.latent is not None or is_odd or model.has_sinks or masks
    if is_special or capability_of(gpu)[0] < AMPERE:
        return f"its attention backend has no FP8 cache on {gpu.name}"
    return ""


def _latent_problem(model: ModelSpec, gpu: GpuSpec, release: Release) -> str:
    """The reason why no backend of latent attention serves a model; empty if one does."""
    latent = model.latent
    if latent is None:
        return ""
    if latent.index_bytes:
        generation = capability_of(gpu)[0]
        lacks_packed = generation == SMALL_BLACKWELL and not release.has_packed_sparse
        reads_any = generation == HOPPER and release.has_half_sparse and not latent.packed_bytes
        is_odd = not reads_any and latent.kv_rank + latent.rope_size != SPARSE_ROW
        is_read = generation >= HOPPER and not lacks_packed and not is_odd
        return "" if is_read else f"sparse attention has no backend on {gpu.name}"
    sizes = (model.head_size, latent.rope_size, latent.v_size)
    if not release.checks_latent_sizes or sizes in LATENT_SIZES:
        return ""
    return f"no prefill backend has qk_nope, qk_rope and v_head_dim {sizes}, but {LATENT_SIZES}"


def _block_of_heads(model: ModelSpec, gpu: GpuSpec, release: Release, backend: str) -> int:
    """Most kernels take multiples of 16 tokens. FlashAttention's next version, which FP8 values of
    wide heads need, takes longer blocks, and so does a backend of two, of which one masks images.
    """
    if not release.has_long_blocks:
        return BLOCK_SIZE
    generation = capability_of(gpu)[0]
    if backend == FLASH_ATTENTION and generation == BLACKWELL and model.head_size == WIDEST_HEAD:
        return FLASH_BLOCK
    is_flash = backend in (AUTO, FLASH_ATTENTION)
    is_wide = model.head_size > WIDEST_HEAD and model.kv_dtype_bytes == 1
    if is_wide and is_flash and generation == HOPPER:
        return WIDE_HEAD_BLOCK
    masks = model.masks_images and backend == AUTO and model.head_size >= WIDEST_HEAD
    return IMAGE_BLOCK if masks and generation == BLACKWELL else BLOCK_SIZE


def block_size_of(
    model: ModelSpec,
    num_gpus: int,
    gpu: GpuSpec,
    release: Release,
    *,
    caches: bool = True,
    requested: int | None = None,
    backend: str = AUTO,
) -> int:
    """The tokens of a block unless the command says them (`requested`), which with states are as
    many as make a block no smaller than a state. backend: as of kernel_block.
    """
    usual = requested or kernel_block(model, gpu, release, backend)
    if model.states is None or not model.states.state_bytes:
        return usual
    state = max(group.state_bytes for group in model.groups)
    needed = ceil_div(state, model.slot_bytes * model.kv_copies(num_gpus))
    aligned = release.latent_alignment if model.latent else BLOCK_SIZE
    if release.aligns_blocks:
        aligned = max(aligned, usual)
    if caches and keeps_each_state(model, release):
        aligned = lcm(aligned, model.states.chunk_size)
    elif caches:
        aligned = lcm(aligned, checkpoint_alignment(model, gpu, release) or 1)
    return max(usual, aligned * ceil_div(needed, aligned))


def checkpoint_alignment(model: ModelSpec, gpu: GpuSpec, release: Release) -> int | None:
    """The tokens at whose multiples a prefill can export a state within it; None: it cannot.

    In a release that exports states, Mamba-2 does at each token, and gated delta nets do with
    FlashInfer's kernel, the choice from Hopper on; those beside latent attention (Kimi's) nowhere.
    """
    if not release.exports_states:
        return None
    if model.states is None or model.states.chunk_size:
        return 1
    if model.latent is not None:
        return None
    generation = capability_of(gpu)[0]
    return GATED_DELTA_CHUNK if generation >= HOPPER else None


def state_pages(model: ModelSpec, gpu: GpuSpec, release: Release) -> int:
    """The pages of a sequence in each group of states if prefixes are cached: the state that is
    written, that which is kept, and one that a prefill exports within it.
    """
    return 2 if checkpoint_alignment(model, gpu, release) is None else 3


def with_cached_states(pages: Pages, model: ModelSpec, gpu: GpuSpec, release: Release) -> Pages:
    """The pages of a server that caches prefixes, whose sequences have more of states."""
    if 0 not in pages.windows:
        return pages
    return replace(
        pages,
        state_pages=state_pages(model, gpu, release),
        keeps_each_state=keeps_each_state(model, release),
    )


def keeps_each_state(model: ModelSpec, release: Release) -> bool:
    """True if a sequence whose prefixes are cached keeps a state at the end of each block: Mamba-2
    in some releases (mamba_cache_mode=all).
    """
    has_chunks = model.states is not None and model.states.chunk_size > 0
    return has_chunks and release.keeps_each_state
