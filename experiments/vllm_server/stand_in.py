"""The model that stands in for a command's (model=NAME): weights quantized as the name says."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from testbed.experiments.runs.model_naming import Quantised, caches_fp8, quantised_by_name
from testbed.experiments.vllm_server.named import model_named, quantised_remedy
from testbed.vllm.command import Command
from testbed.vllm.start_refusals import CACHE_TYPE


def with_stand_in(command: Command, model: str | None, folders: Sequence[Path] = ()) -> Command:
    """The command with the shape of another model; None: with its own. Raises InputError as
    check_stand_in does.
    """
    if model is None:
        return command
    check_stand_in(command.model, command.values, model, folders)
    return replace(command, model=model)


def in_place(named: str | None, model: str | None) -> list[str]:
    """The note that another model stands in for a command's; none without one."""
    if named is None or model is None or named == model:
        return []
    return [f"model={model} in place of {named} of the command"]


def check_stand_in(
    named: str | None, values: Mapping[str, str], model: str, folders: Sequence[Path] = ()
) -> None:
    """Raise InputError if the name of a command's model says a quantization that another has not,
    or that the checkpoint says the type of the cache, and no option does.
    """
    if named is None or named == model:
        return
    by_name = quantised_by_name(named)
    if by_name is not None and not _is_so(model_named(model, folders).shape, by_name):
        raise _refusal(named, model, f"has no weights of {by_name.word}")
    if caches_fp8(named) and values.get(CACHE_TYPE, "auto") == "auto":
        raise _refusal(named, model, "does not say the type of the cache, as that checkpoint does")


def _refusal(named: str, model: str, problem: str) -> InputError:
    return InputError(
        key="model",
        value=model,
        problem=f"in place of {named}: {problem}",
        remedy=quantised_remedy(named, model),
    )


def _is_so(shape: ModelSpec, by_name: Quantised) -> bool:
    """True if a shape's layers, or its experts, have such weights."""
    least, most = by_name.bits
    of_experts = None if shape.experts is None else shape.experts.bits
    if shape.weight_bits is None:
        return of_experts is not None and least <= of_experts <= most and not by_name.fp8_products
    is_fp8 = bool(shape.fp8_products)
    return least <= shape.weight_bits <= most and is_fp8 == by_name.fp8_products
