"""The attention backend that a vLLM command names, as far as the blocks of its cache follow.

Source: validate_configuration of the classes in vLLM's v1/attention/backends/.
"""

from testbed.core.specs import ModelSpec
from testbed.vllm.attention_backends import (
    AUTO,
    BLACKWELL,
    FLASH_ATTENTION,
    FLASH_HEAD,
    FLASHINFER_HEADS,
    FP8_CAPABILITY,
    HOPPER,
    WIDEST_HEAD,
)
from testbed.vllm.generations import capability_of
from testbed.vllm.option_reader import OptionReader

OPTION, CACHE_TYPE = "--attention-backend", "--kv-cache-dtype"
FLASHINFER, TRITON, FLEX = "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION"
NAMES = (FLASH_ATTENTION, FLASHINFER, TRITON, FLEX)
LONG_HEAD = 512  # values of heads that FlashInfer leaves to another backend's kernel


def chosen_backend(reader: OptionReader, model: ModelSpec) -> str:
    """The value of --attention-backend. Raises InputError for one with which vLLM does not start,
    or whose blocks are not modelled.
    """
    named = reader.value(OPTION) or AUTO
    if named.lower() == AUTO:
        return AUTO
    backend, generation = named.upper(), capability_of(reader.gpu)[0]
    if model.latent is not None:
        raise reader.refusal(
            OPTION, "the blocks of latent attention follow from it: not modelled", "leave it out"
        )
    if backend not in NAMES:
        raise reader.refusal(OPTION, "is not modelled", f"choose from {AUTO}, {', '.join(NAMES)}")
    if problem := _problem(reader, model, backend):
        raise reader.does_not_start(OPTION, problem)
    has_long_blocks = reader.release.has_long_blocks and generation == BLACKWELL
    is_flash = backend == FLASH_ATTENTION
    if is_flash and has_long_blocks and model.head_size >= WIDEST_HEAD and model.states is None:
        raise reader.refusal(
            OPTION,
            (
                f"its blocks for heads of {model.head_size} without states on {reader.gpu.name} "
                "are not modelled"
            ),
            "leave it out",
        )
    return backend


def _problem(reader: OptionReader, model: ModelSpec, backend: str) -> str:
    """The reason why a backend does not serve a model on a GPU; empty if it does."""
    generation, gpu = capability_of(reader.gpu)[0], reader.gpu.name
    if model.kv_dtype_bytes == 1 and not _reads_fp8(reader, model, backend):
        return f"reads no such FP8 cache on {gpu}"
    if model.has_sinks and not _has_sinks(backend, generation):
        return f"has no attention sinks on {gpu}"
    masks = backend in (TRITON, FLEX) or (backend, generation) == (FLASH_ATTENTION, BLACKWELL)
    if model.masks_images and not masks and reader.release.has_long_blocks:
        return f"lets no token of an image attend to later ones on {gpu}"
    if backend == FLEX and model.caps_logits:
        return "caps no logits"
    if backend == FLASHINFER and model.head_size not in (*FLASHINFER_HEADS, LONG_HEAD):
        return f"its heads have {', '.join(map(str, FLASHINFER_HEADS))} values"
    has_long_heads = reader.release.has_long_blocks and generation >= HOPPER
    if backend == FLASH_ATTENTION and model.head_size > WIDEST_HEAD and not has_long_heads:
        return f"its heads have at most {WIDEST_HEAD} values"
    return ""


def _reads_fp8(reader: OptionReader, model: ModelSpec, backend: str) -> bool:
    capability = capability_of(reader.gpu)
    if backend == FLASH_ATTENTION:
        is_narrow = capability[0] == BLACKWELL and model.head_size <= FLASH_HEAD
        is_e5m2 = reader.value(CACHE_TYPE) == "fp8_e5m2"
        return not is_e5m2 and (capability[0] == HOPPER or is_narrow)
    if backend == TRITON:
        return capability >= FP8_CAPABILITY or not reader.release.checks_fp8_cache
    return backend == FLASHINFER


def _has_sinks(backend: str, generation: int) -> bool:
    least = {FLASH_ATTENTION: HOPPER, FLASHINFER: BLACKWELL, TRITON: 0}
    return backend in least and generation >= least[backend]
