"""The model that stands in for a command's (model=NAME): weights quantized as the name says."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from testbed.experiments.runs.model_naming import Quantised, caches_fp8, quantised_by_name
from testbed.experiments.vllm_server.named import model_named, quantised_remedy
from testbed.vllm.command import Command
from testbed.vllm.start_refusals import CACHE_TYPE


def with_stand_in(command: Command, model: str | None, folders: Sequence[Path] = ()) -> Command:
    """The command with the shape of another model; None: with its own.

    Raises InputError if the name of the command's model says a quantization that the other has
    not, or that the type of its cache is the checkpoint's.
    """
    if model is None or model == command.model:
        return command
    said = quantised_by_name(command.model or "")
    if said is not None and not _is_so(model_named(model, folders).shape, said):
        raise _refusal(command, model, f"has no weights of {said.word}")
    if caches_fp8(command.model or "") and command.values.get(CACHE_TYPE, "auto") == "auto":
        raise _refusal(command, model, f"does not say the cache's type, which {command.model} does")
    return replace(command, model=model)


def _refusal(command: Command, model: str, problem: str) -> InputError:
    named = command.model or ""
    return InputError(
        key="model",
        value=model,
        problem=f"in place of {named}: {problem}",
        remedy=quantised_remedy(named, model),
    )


def _is_so(shape: ModelSpec, said: Quantised) -> bool:
    """True if a shape's layers, or its experts, have such weights."""
    least, most = said.bits
    of_experts = None if shape.experts is None else shape.experts.bits
    if shape.weight_bits is None:
        return of_experts is not None and least <= of_experts <= most and not said.fp8_products
    is_fp8 = bool(shape.fp8_products)
    return least <= shape.weight_bits <= most and is_fp8 == said.fp8_products
