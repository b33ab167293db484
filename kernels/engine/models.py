"""The models of an engine, the one that serves and one that drafts: architectures and weights."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from testbed.kernels.engine.architecture import Architecture, check_served, of_folder, of_spec
from testbed.kernels.engine.random_weights import random_weights
from testbed.kernels.engine.weight_folder import load_weights
from testbed.kernels.engine.weights import Weights
from testbed.run.config import EngineConfig

RANDOM = "random"


class Model(NamedTuple):
    """An architecture with its weights on the device."""

    arch: Architecture
    weights: Weights


def architecture(weights: str, spec: ModelSpec, name: str = "model") -> Architecture:
    """The architecture of a shape; raises InputError if that of a folder of weights is another.

    name: of the shape in the config.
    """
    if weights == RANDOM:
        return of_spec(spec)
    arch = of_folder(Path(weights))
    for field in ("num_layers", "num_kv_heads", "head_size", "window"):
        if getattr(arch.spec, field) != getattr(spec, field):
            raise InputError(
                key=f"{weights}: {field}",
                value=getattr(arch.spec, field),
                problem=f"{name}.{field} is {getattr(spec, field)}",
                remedy="take the config's model from the folder",
            )
    check_served(spec)
    return replace(arch, spec=replace(arch.spec, kv_dtype_bytes=spec.kv_dtype_bytes))


def weights_of(arch: Architecture, weights: str, seed: int, options: EngineConfig) -> Weights:
    """The weights of a folder, or random ones, on the device of the options and of their type."""
    where = options.device, getattr(torch, options.dtype)
    if weights == RANDOM:
        return random_weights(arch, seed, *where)
    return load_weights(arch, Path(weights), *where)
