"""Prices of dense GPTs on A100s from what AIConfigurator measured there: matrix products, attention, all-reduces."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.commands.arguments.validate_batches import SHAPE
from experiments.importers import aiconfigurator
from experiments.importers.aiconfigurator_links import nccl_points
from experiments.importers.imported import Asked
from experiments.validation.batches import Prices
from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec, ServerSpec
from testbed.cost.profile import Choices, ProfileCost

# Share of the peak that large matrix products reach under load: measured, testbed/cost/profiles/h200-opt-13b-tp1.json.
# AIConfigurator's are short bursts at full clocks, at up to 0.92 of the A100's.
PEAK_SHARE = 0.72
MAX_LEN = 2048


def dense_gpts(table: pd.DataFrame) -> dict[str, ModelSpec]:
    """Models by name; as wide as their heads together, with a feed-forward layer four times as wide."""
    found = {}
    for name, *shape in table[["model", *SHAPE]].itertuples(index=False, name=None):
        layers, heads, size, vocab = map(int, shape)
        width = heads * size
        found[name] = ModelSpec(name, layers, width, heads, heads, size, 4 * width, 2, vocab, MAX_LEN, True)
    return found


def prices(folder: Path, models: Mapping[str, ModelSpec], layer_s: Mapping[int, float]) -> Prices:
    """The price of a batch by model and degree; layer_s is what a layer takes beyond its kernels on so many GPUs."""

    @cache
    def of(name: str, degree: int) -> ProfileCost:
        if name not in models:
            raise InputError(f"no shape of model {name!r}; add it to the models ({', '.join(models)})")
        imported = aiconfigurator.read(folder, Asked(models[name], None, degree))
        if imported.gpu is None:
            raise InputError(f"{folder}: no data sheet; it is systems/NAME.yaml beside systems/data/NAME")
        profile = dict(imported.profile())
        profile["sections"] = dict(profile["sections"])
        _under_load(profile, models[name].layer_params / degree, imported.gpu.fp16_flops)
        if degree > 1:
            section = profile["sections"]["all_reduce"]
            profile["sections"]["all_reduce"] = {**section, "points": nccl_points(folder, degree)}
        server = ServerSpec(imported.gpu.name, imported.gpu, degree)
        return ProfileCost(models[name], server, profile, Choices(parallel_layer_s=layer_s))

    return lambda batch: of(batch.model, batch.tensor_parallel)


def _under_load(profile: dict[str, Any], params: float, flops: float) -> None:
    """Matrix products take at least what their FLOPs need at PEAK_SHARE of the peak."""
    section = profile["sections"]["linear"]
    us = 1e6 * 2 * params / (flops * PEAK_SHARE)
    profile["sections"]["linear"] = {**section, "points": [[n, max(told, us * n)] for n, told in section["points"]]}
