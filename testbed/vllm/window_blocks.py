"""The tokens of a block that --block-size gives to layers with windows.

Source: vLLM, model_executor/layers/attention/attention.py (Attention.get_kv_cache_spec): such a
layer has the largest block of its backend's that is no larger than the one that is asked for.
"""

from testbed.core.specs import ModelSpec
from testbed.vllm.attention_backends import AUTO, BLACKWELL, HOPPER, WIDEST_HEAD
from testbed.vllm.chosen_backend import FLASHINFER
from testbed.vllm.generations import capability_of
from testbed.vllm.option_reader import OptionReader

OPTION = "--block-size"
SIZES = (16, 32, 64)


def block_with_windows(reader: OptionReader, model: ModelSpec, size: int, backend: str) -> int:
    """The block of a model for which the command asks `size`, by this attention backend. Raises
    InputError if vLLM would have pages of two sizes.
    """
    if model.window is None:
        return size
    has_windows_alone = all(group.window is not None for group in model.groups)
    if has_windows_alone and reader.release.windows_choose_blocks:
        raise reader.refusal(
            OPTION, "layers with a window have blocks of their own in this release"
        )
    if size % SIZES[0] or not _is_flashinfer(reader, model, backend):
        return size
    own = max(block for block in SIZES if block <= size)
    is_wide = model.head_size > WIDEST_HEAD and size > own
    if not has_windows_alone and (size % own or is_wide):
        raise reader.refusal(
            OPTION, f"layers with a window take one of {own} on {reader.gpu.name}: not modelled"
        )
    return own if has_windows_alone else size


def _is_flashinfer(reader: OptionReader, model: ModelSpec, backend: str) -> bool:
    """True if FlashInfer serves layers with windows, or may beside a kernel of wide heads."""
    if backend != AUTO or model.has_sinks:
        return backend == FLASHINFER
    generation, is_small = capability_of(reader.gpu)[0], model.kv_dtype_bytes == 1
    is_read_by_flash = generation == HOPPER and reader.value("--kv-cache-dtype") != "fp8_e5m2"
    if model.head_size > WIDEST_HEAD:
        return generation == BLACKWELL or (generation == HOPPER and is_small)
    if model.masks_images:
        return False
    return generation == BLACKWELL or (is_small and not is_read_by_flash)
