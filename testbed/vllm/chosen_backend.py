"""The attention backend that a vLLM command names, as far as the blocks of its cache follow."""

from testbed.core.specs import ModelSpec
from testbed.vllm.attention_backends import (
    AUTO,
    BLACKWELL,
    FLASH_ATTENTION,
    HOPPER,
    WIDEST_HEAD,
)
from testbed.vllm.generations import capability_of
from testbed.vllm.option_reader import OptionReader

OPTION = "--attention-backend"


def chosen_backend(reader: OptionReader, model: ModelSpec) -> str:
    """The value of --attention-backend. Raises InputError for one with which vLLM does not start,
    or whose blocks are not modelled.
    """
    backend = reader.value(OPTION) or AUTO
    if backend == AUTO:
        return backend
    gpu, release = reader.gpu, reader.release
    generation = capability_of(gpu)[0]
    if model.latent is not None:
        raise reader.refusal(
            OPTION, "the blocks of latent attention follow from it: not modelled", "leave it out"
        )
    if backend != FLASH_ATTENTION:
        return backend
    if model.has_sinks and generation < HOPPER:
        raise reader.does_not_start(OPTION, f"has no attention sinks on {gpu.name}")
    if model.head_size > WIDEST_HEAD and (not release.has_long_blocks or generation < HOPPER):
        raise reader.does_not_start(OPTION, f"its heads have at most {WIDEST_HEAD} values")
    has_long_blocks = release.has_long_blocks and generation == BLACKWELL
    if has_long_blocks and model.head_size >= WIDEST_HEAD and model.states is None:
        raise reader.refusal(
            OPTION,
            (
                f"its blocks for heads of {model.head_size} without states on {gpu.name} are not "
                "modelled"
            ),
            "leave it out",
        )
    return backend
