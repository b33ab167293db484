"""Costs of dense GPTs on A100s: by AIConfigurator's measured kernels, or FasterTransformer's of the figures."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pandas as pd

from testbed.core.errors import InputError
from testbed.core.shapes import model_names, read_model
from testbed.core.specs import ModelSpec, ServerSpec
from testbed.cost.model import CostModel
from testbed.cost.profile import Choices, ProfileCost
from testbed.experiments.importers import aiconfigurator
from testbed.experiments.importers.aiconfigurator_tables import nccl_points
from testbed.experiments.importers.imported import Requested
from testbed.experiments.importers.known_shapes import gpu_of_device
from testbed.experiments.runs.compose import configured
from testbed.experiments.validation.batches import CostOfBatch
from testbed.machine import make_cost

SHAPE = ["num_layers", "num_heads", "head_size", "vocab_size"]
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


def costs(folder: Path, models: Mapping[str, ModelSpec], layer_s: Mapping[int, float]) -> CostOfBatch:
    """The cost of a batch by model and degree; layer_s is what a layer takes beyond its kernels on so many GPUs.

    A model is one of `models`, or one that ships. Matrix products take at least what their FLOPs need at PEAK_SHARE of
    the peak.
    """

    @cache
    def of(name: str, degree: int, device: str) -> ProfileCost:
        if name not in (*models, *model_names()):
            known = ", ".join([*models, *model_names()])
            raise InputError(f"no shape of model {name!r}; add it to the models ({known})")
        model = models[name] if name in models else read_model(name)
        imported = aiconfigurator.read(folder, Requested(model, None, degree))
        if imported.gpu is None:
            raise InputError(f"{folder}: no data sheet (it is systems/NAME.yaml next to systems/data/NAME)")
        if device and gpu_of_device(device) != gpu_of_device(imported.device):
            raise InputError(f"{folder}: measured on {imported.device}, a batch on {device} (choose by --device)")
        linear, needed_us = imported.sections["linear"], 2e6 * model.layer_params / degree
        needed_us /= imported.gpu.fp16_flops * PEAK_SHARE
        linear["points"] = [[n, max(measured, needed_us * n)] for n, measured in linear["points"]]
        if degree > 1:
            imported.sections["all_reduce"]["points"] = nccl_points(folder, degree)
        server = ServerSpec(imported.gpu.name, imported.gpu, degree)
        return ProfileCost(model, server, imported.profile(), Choices(parallel_layer_s=layer_s))

    return lambda batch: of(batch.model, batch.tensor_parallel, batch.device)


def figures() -> CostOfBatch:
    """FasterTransformer's costs in the figures: an H200's measurements, scaled to the batch's card (`device`)."""

    @cache
    def of(model: str, degree: int, device: str) -> CostModel:
        gpu = gpu_of_device(device)
        if gpu is None:
            raise InputError(f"device {device!r}: no data sheet of such a card (the column `device` names an A100)")
        words = ("+protocol=sosp23", "+system=fastertransformer", f"model={model}", f"server={gpu.name}")
        config = configured(words, {"scheduler.max_batch_size": 1, "server.num_gpus": degree})
        return make_cost(config.cost, config.model, config.server)

    return lambda batch: of(batch.model, batch.tensor_parallel, batch.device)
