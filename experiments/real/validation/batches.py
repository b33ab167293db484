"""Static batches: predicted latencies next to measured ones, and a report of the errors.

The columns of the table are the fields of Batch and latency_ms, which is empty for a batch that was
not measured. The costs are of dense GPTs on A100s: from AIConfigurator's measured kernels, or
FasterTransformer's costs in the paper's figures.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from testbed.core.errors import InputError
from testbed.core.model_files import model_names
from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec, ServerSpec
from testbed.cost.model import CostModel, Work
from testbed.cost.profile import Choices, ProfileCost
from testbed.experiments.real.importers import aiconfigurator
from testbed.experiments.real.importers.aiconfigurator_tables import nccl_points
from testbed.experiments.real.importers.imported import Requested
from testbed.experiments.real.importers.known_shapes import gpu_of_device
from testbed.experiments.runs.compose import configured
from testbed.run.machine import cost_of

MS = 1e-9  # of a picosecond
WITHIN = 0.20
FEWEST_ROWS = 10  # that separate the three shares of the missing time
LARGEST_BATCH = 32  # whose decode steps are judged; larger batches are mostly prefill
DIFFERENCES = ["input_len", "output_len", "latency_ms", "predicted_ms", "predicted_prompts_ms"]
SHAPE = ["num_layers", "num_heads", "head_size", "vocab_size"]
# Share of the peak that large matrix products reach under load: measured,
# testbed/cost/profiles/h200-opt-13b-tp1.json. AIConfigurator's are short bursts at full clocks, at
# up to 0.92 of the A100's.
PEAK_SHARE = 0.72
MAX_LEN = 2048


class Batch(NamedTuple):
    """batch_size prompts of input_len tokens, each with output_len tokens in beam_width beams.

    device: the card as its driver names it; empty if all batches are of the costs' card.
    """

    model: str
    tensor_parallel: int
    batch_size: int
    input_len: int
    output_len: int
    beam_width: int = 1
    device: str = ""


CostOf = Callable[[str, int, str], CostModel]  # by model, number of GPUs and device
FIELDS = list(Batch._fields)
ALIKE = [name for name in FIELDS if name not in ("input_len", "output_len")]


def predict(cost: CostModel, batch: Batch) -> tuple[float, float]:
    """Milliseconds of the prefill, which is one iteration, and of all decode steps."""
    size, prompt_len = batch.batch_size, batch.input_len
    prefill_ps = cost.iteration(Work(prefill=((prompt_len, 0),) * size, num_requests=size))
    num_seqs = size * batch.beam_width
    steps_ps = 0
    for context in range(prompt_len + 1, prompt_len + batch.output_len):
        work = Work(num_seqs, num_seqs * context, context, num_requests=size)
        steps_ps += cost.iteration(work)
    return prefill_ps * MS, steps_ps * MS


def with_predictions(table: pd.DataFrame, cost_of: CostOf) -> pd.DataFrame:
    """The table with predicted_ms, predicted_prompts_ms, error and the columns of with_steps."""
    batches = [Batch(*row) for row in table[FIELDS].itertuples(index=False)]
    costs = [cost_of(batch.model, batch.tensor_parallel, batch.device) for batch in batches]
    prompts, steps = np.array(list(map(predict, costs, batches))).T
    table = table.assign(predicted_ms=prompts + steps, predicted_prompts_ms=prompts)
    return with_steps(table.assign(error=table["predicted_ms"] / table["latency_ms"] - 1))


def with_steps(table: pd.DataFrame) -> pd.DataFrame:
    """The table with step_ms and predicted_step_ms of each batch that has a shorter one.

    The shorter batch is of the same kind, with fewer output tokens and the nearest prompts that are
    not longer. The time of the steps is the difference of both latencies, less the predicted
    difference of their prefills. is_decoding: whether the outputs differ by more than the prompts.
    """
    timed = table[table["latency_ms"].notna()].rename_axis("place").reset_index()
    both = timed.merge(timed, on=ALIKE, suffixes=("", "_0"))
    both = both[
        (both["output_len_0"] < both["output_len"]) & (both["input_len_0"] <= both["input_len"])
    ]
    both = (
        both.sort_values(["input_len_0", "output_len_0"])
        .groupby("place")
        .tail(1)
        .set_index("place")
    )
    inputs, count, ms, predicted_ms, prompts_ms = (
        both[name] - both[f"{name}_0"] for name in DIFFERENCES
    )
    steps = {
        "step_ms": (ms - prompts_ms) / count,
        "predicted_step_ms": (predicted_ms - prompts_ms) / count,
    }
    return table.join(pd.DataFrame({**steps, "is_decoding": inputs < count}))


def report(table: pd.DataFrame) -> Iterator[str]:
    """Lines: errors by model and number of GPUs, the worst rows, and the rows never measured."""
    measured = table[table["latency_ms"].notna()]
    steps = measured[measured["step_ms"].notna() & (measured["batch_size"] <= LARGEST_BATCH)]
    steps = steps.assign(error=steps["predicted_step_ms"] / steps["step_ms"] - 1)
    yield (
        f"decode steps, batch up to {LARGEST_BATCH}: {len(steps)} differences of rows, less that "
        "of their prompts"
    )
    decoding = steps["is_decoding"].astype(bool)
    yield from by_kind("  step, prompts differ by less than outputs", steps[decoding])
    yield from by_kind("  step, prompts differ by more", steps[~decoding])
    if len(steps):
        yield f"  all steps: median {steps['error'].abs().median():.1%}"
    yield from by_kind("whole batch", measured)
    yield from left_over(measured)
    sizes = measured["error"].abs()
    within = sizes <= WITHIN
    yield f"all {len(sizes)} batches: median {sizes.median():.1%}, {within.mean():.1%} within 20%"
    for _, batch in measured[~within].sort_values("error").iterrows():
        yield f"  beyond 20%: {named(batch)}: {batch['error']:+.0%}"
    for _, batch in table[table["latency_ms"].isna()].iterrows():
        yield f"not measured: {named(batch)}: {batch['predicted_ms']:.0f} ms"


def by_kind(what: str, table: pd.DataFrame) -> Iterator[str]:
    """A line for each kind of batch (see kind_of)."""
    if not len(table):
        return
    size = table["batch_size"].where(table["device"] != "", 0)
    table = table.assign(size=size).sort_values(["device", "size"], kind="stable")
    for kind, rows in table.groupby(table.apply(kind_of, axis=1), sort=False):
        error, sizes = rows["error"], rows["error"].abs()
        yield (
            f"{what}, {kind}: median {error.median():+.1%}, of sizes {sizes.median():.1%}, "
            f"{error.min():+.0%} to {error.max():+.0%} ({len(rows)} rows)"
        )


def kind_of(batch: pd.Series) -> str:
    """Model and number of GPUs; also card and batch size if the table names cards."""
    kind = f"{batch['model']} on {batch['tensor_parallel']}"
    return f"{kind} {batch['device']}, batch {batch['batch_size']}" if batch["device"] else kind


def named(batch: pd.Series) -> str:
    """A batch in words."""
    size = "" if batch["device"] else f", batch {batch['batch_size']}"
    return f"{kind_of(batch)}{size}, {batch['input_len']} + {batch['output_len']} tokens"


def left_over(table: pd.DataFrame) -> Iterator[str]:
    """Time beyond the cost by kind of batch: fixed, per prompt token, per step (least squares)."""
    for kind, rows in table.groupby(table.apply(kind_of, axis=1), sort=False):
        counts = np.stack(
            [np.ones(len(rows)), rows["batch_size"] * rows["input_len"], rows["output_len"] - 1],
            axis=1,
        )
        (fixed, token, step), _, rank, _ = np.linalg.lstsq(
            counts, rows["latency_ms"] - rows["predicted_ms"]
        )
        if rank == 3 and len(rows) >= FEWEST_ROWS:
            shares = f"{fixed:+.0f} ms, {1e3 * token:+.1f} us a prompt token, {step:+.2f} ms a step"
            yield f"measured beyond its cost, {kind}: {shares} ({len(rows)} rows)"


def dense_gpts(table: pd.DataFrame) -> dict[str, ModelSpec]:
    """Models by name: as wide as all heads, and a feed-forward layer of four times the width."""
    models = {}
    for name, *shape in table[["model", *SHAPE]].itertuples(index=False, name=None):
        layers, heads, size, vocab = map(int, shape)
        width = heads * size
        models[name] = ModelSpec(
            name=name,
            num_layers=layers,
            hidden_size=width,
            num_heads=heads,
            num_kv_heads=heads,
            head_size=size,
            ffn_size=4 * width,
            ffn_matrices=2,
            vocab_size=vocab,
            max_len=MAX_LEN,
            tied_embedding=True,
        )
    return models


def costs(folder: Path, models: Mapping[str, ModelSpec], layer_s: Mapping[int, float]) -> CostOf:
    """The costs from AIConfigurator's kernels.

    models: shapes by name, besides the models that ship. layer_s: seconds of a layer beyond its
    kernels, by number of GPUs.
    """

    @cache
    def cost_of(name: str, num_gpus: int, device: str) -> ProfileCost:
        if name not in (*models, *model_names()):
            listed = ", ".join([*models, *model_names()])
            raise InputError(
                key="model",
                value=name,
                problem="has no shape here",
                remedy=f"add it to the models: {listed}",
            )
        model = models[name] if name in models else read_model(name)
        return _profile_cost(folder, model, num_gpus, device, layer_s)

    return cost_of


def _profile_cost(
    folder: Path, model: ModelSpec, num_gpus: int, device: str, layer_s: Mapping[int, float]
) -> ProfileCost:
    """The costs of one model's shard; matrix products take no less than at PEAK_SHARE."""
    imported = aiconfigurator.read(folder, Requested(model, tensor_parallel=num_gpus))
    if imported.gpu is None:
        raise InputError(
            key=folder, problem="no data sheet (it is systems/NAME.yaml next to systems/data/NAME)"
        )
    if device and gpu_of_device(device) != gpu_of_device(imported.device):
        raise InputError(
            key=folder,
            problem=f"measured on {imported.device}, a batch on {device}",
            remedy="choose by --device",
        )
    least_us = 2e6 * model.layer_params / num_gpus  # of a token
    least_us /= imported.gpu.fp16_flops * PEAK_SHARE
    linear = imported.sections["linear"]
    linear["points"] = [[n, max(measured, least_us * n)] for n, measured in linear["points"]]
    if num_gpus > 1:
        imported.sections["all_reduce"]["points"] = nccl_points(folder, num_gpus)
    server = ServerSpec(imported.gpu.name, imported.gpu, num_gpus)
    return ProfileCost(model, server, imported.profile(), Choices(parallel_layer_s=layer_s))


@cache
def figures(model: str, degree: int, device: str) -> CostModel:
    """FasterTransformer's costs in the paper's figures: an H200's, scaled to the card `device`."""
    gpu = gpu_of_device(device)
    if gpu is None:
        raise InputError(
            key=f"device {device!r}",
            problem="no data sheet of such a card (the column `device` names an A100)",
        )
    words = (
        "+protocol=sosp23",
        "+system=fastertransformer",
        f"model={model}",
        f"server={gpu.name}",
    )
    config = configured(words, {"scheduler.max_batch_size": 1, "server.num_gpus": degree})
    return cost_of(config)
