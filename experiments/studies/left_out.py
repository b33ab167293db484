"""Two tests of costs: whole profiles, and rows of tables, predicted from the others.

1. Each profile is left out, and its decodes, prefills and whole runs are predicted from the other
   profiles. Both sides serve the same requests by the same system with the same software time, so
   only the kernels' costs differ.
2. Every n-th row of AIConfigurator's tables is held back. Every shipped model that is not plain and
   is in the tables is imported on 1, 2, 4 and 8 GPUs, with 16-bit and with fp8 K and V. Matrix
   products are not tested, because they are interpolated in a whole grid.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from sys import maxsize
from typing import Any, NamedTuple

import numpy as np

from testbed.core.errors import InputError
from testbed.core.model_files import model_names
from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec, ServerSpec
from testbed.cost.analytic import AnalyticCost
from testbed.cost.attention_times import DecodeTable, PrefillTable
from testbed.cost.auto import MEASURED, ROOFLINE, Costs, adapted_choices, by_way, carried
from testbed.cost.interpolation import Knots
from testbed.cost.known_profiles import Known
from testbed.cost.kv_groups import WindowTable
from testbed.cost.model import UNBOUNDED, WindowReads, Work
from testbed.cost.profile import ProfileCost
from testbed.cost.sections import Rows, rows
from testbed.experiments.real.importers.aiconfigurator import from_tables, tables_of
from testbed.experiments.real.importers.imported import Imported, Requested
from testbed.experiments.real.importers.known_shapes import gpu_of_device
from testbed.experiments.real.importers.readers import reader_of
from testbed.experiments.runs.compose import configured
from testbed.run.config import RunConfig, ServerConfig
from testbed.run.parts import Part
from testbed.run.simulate import run

DECODES = [
    Work(seqs, seqs * mean, mean) for seqs in (1, 8, 32, 64, 128) for mean in (128, 512, 2048)
]
PREFILLS = [Work(prefill=((new, 0),)) for new in (128, 512, 1024, 2048)]
BATCH = 16  # sequences that the load keeps in the batch, about
MEAN_OUTPUT, NUM_REQUESTS = 300, 300
SYSTEM = (
    "+system=vllm-v1",
    "scheduler.max_num_batched_tokens=2048",
    "scheduler.max_num_seqs=128",
    "trace=sharegpt",
    "outputs=summary",
    "seed=0",
)
NUM_BLOCKS = 4096
PLACE = ("model", "gpu", "num_gpus", "measured_by")
SOURCE = ("source_model", "source_gpu", "source_num_gpus", "source_by")
RUNS = {"ttft_percent": "ttft_s", "tpot_percent": "tpot_s", "latency_percent": "e2e_s"}
Row = dict[str, Any]
PARTS = (
    "decode_attention",
    "prefill_attention",
    "window_decode_attention",
    "window_prefill_attention",
    "state_decode",
    "state_prefill",
    "experts",
)
Key = tuple[Any, ...]


def imported(folder: Path, shards: Sequence[tuple[str, int]]) -> Iterator[Known]:
    """The profile in a folder; for AIConfigurator's tables, the profiles of these shards."""
    reader = reader_of(folder)
    any_model = reader.NAME == "AIConfigurator"
    for model, num_gpus in shards if any_model else [(None, None)]:
        shard = reader.read(folder, Requested(model, tensor_parallel=num_gpus))
        # A run takes our data sheet, which may differ from the source's
        gpu = gpu_of_device(shard.device) or shard.gpu
        if gpu is None:
            raise InputError(
                key=folder,
                problem=f"no data sheet of {shard.device}; nothing can be derived for it",
            )
        profile = shard.profile()
        gpu = replace(gpu, device=shard.device)
        yield Known(profile, gpu, ModelSpec(**profile["model"]))


def tested(sources: Sequence[Known], targets: Sequence[Known]) -> Iterator[Row]:
    """A row for each target and each prediction of its costs from the other sources.

    Errors are percentages: of decodes and prefills the median and the 90th percentile of their
    sizes, of whole runs the signed errors of the means.
    """
    for target in targets:
        model, num_gpus = target.model, target.profile["num_gpus"]
        server = ServerSpec(target.gpu.name, target.gpu, num_gpus)
        truth = _measured(model, server, target.profile)
        rate = BATCH / (MEAN_OUTPUT * truth.iteration(DECODES[4]) / 1e12)
        real = _served(truth, model, server, rate)
        others = [source for source in sources if source is not target]
        for way, source, cost in _predictions(model, server, others):
            simulated = _served(cost, model, server, rate)
            errors = _errors_of_iterations(cost, truth)
            errors |= {column: 100 * (simulated[column] / real[column] - 1) for column in RUNS}
            place = _place(source, SOURCE) if source else dict.fromkeys(SOURCE, "")
            rounded = {name: round(float(error), 1) for name, error in errors.items()}
            yield {**_place(target, PLACE), "way": way, **place, **rounded}


def _errors_of_iterations(cost: Costs, truth: Costs) -> dict[str, float]:
    """Median and 90th percentile of the errors' sizes in percent, of decodes and of prefills."""
    errors = dict[str, float]()
    for kind, works in (("decode", DECODES), ("prefill", PREFILLS)):
        sizes = [100 * abs(cost.iteration(work) / truth.iteration(work) - 1) for work in works]
        errors[f"{kind}_percent"] = float(np.median(sizes))
        errors[f"{kind}_p90_percent"] = float(np.percentile(sizes, 90))
    return errors


def maker(profile: Any) -> str:
    """The project that measured a profile."""
    return str(profile["fingerprint"]["source"]).removeprefix("imported from ")


def _predictions(
    model: ModelSpec, server: ServerSpec, others: Sequence[Known]
) -> Iterator[tuple[str, Known | None, Costs]]:
    """Way, source and costs of each prediction: from each maker's profiles, and by a roofline.

    A maker's own measurement of the same model and GPU is no prediction, and is left out.
    """
    for who in dict.fromkeys(maker(source.profile) for source in others):
        sources = [source for source in others if maker(source.profile) == who]
        for way, source in by_way(model, server, sources).items():
            if way != MEASURED:
                profile = carried(way, source, model, server, sources)
                yield way, source, _measured(model, server, profile)
    efficiencies = _config().cost.parameters["roofline"].make("cost.roofline")
    yield ROOFLINE, None, AnalyticCost(model, server, efficiencies)


def _measured(model: ModelSpec, server: ServerSpec, profile: Any) -> ProfileCost:
    choices = _config().cost.parameters["choices"].make("cost.choices")
    return ProfileCost(model, server, profile, adapted_choices(choices, profile))


@cache
def _config() -> RunConfig:
    return configured(SYSTEM)


def _served(cost: Costs, model: ModelSpec, server: ServerSpec, rate: float) -> dict[str, float]:
    """The mean latencies of a run with these costs."""
    config = _config()
    gpu = replace(server.gpu, memory_bytes=maxsize)  # the pool need not fit beside the weights
    machine = ServerConfig(server.name, gpu, server.num_gpus, num_blocks=NUM_BLOCKS)
    arrivals = config.arrivals.updated(rate=rate, duration_s=NUM_REQUESTS / rate)
    changed = replace(config, model=model, server=machine, arrivals=arrivals, cost=Part(cost))
    summary = run(changed).summary
    return {column: summary[name]["mean"] for column, name in RUNS.items()}


def _place(profile: Known, columns: Sequence[str]) -> Row:
    there = profile.profile
    values = profile.model.name, profile.gpu.name, there["num_gpus"], maker(there)
    return dict(zip(columns, values, strict=True))


class HeldBack(NamedTuple):
    """A held-back row: its kind, its shape, and the error of the profile without it.

    error: None if the row is outside the other rows.
    """

    kind: str
    section: str
    shape: Key
    error: float | None


def held_back(folder: Path, every: int) -> Iterator[HeldBack]:
    """The rows of all shards; a shard with the same rows as an earlier one is left out."""
    tables = {name: table for name, table in tables_of(folder).items() if name != "gemm"}
    kept = {name: table[table.index % every != every - 1] for name, table in tables.items()}
    kept["all_reduce"] = tables["all_reduce"]
    seen = set[str]()
    for name, num_gpus, kv_bytes in product(model_names(), (1, 2, 4, 8), (2, 1)):
        model = read_model(name)
        if model.is_plain and kv_bytes == model.dtype_bytes:
            continue
        requested = Requested(name, tensor_parallel=num_gpus, kv_dtype_bytes=kv_bytes)
        try:
            complete, rest = (from_tables(folder, which, requested) for which in (tables, kept))
        except InputError:
            continue  # the tables lack this shard
        for section in PARTS:
            body = complete.sections.get(section)
            if body is None or section.split("_")[0] in complete.not_measured or str(body) in seen:
                continue
            seen.add(str(body))
            yield from _rows(section, complete, rest, model.latent is not None, kv_bytes)


def _rows(
    section: str, complete: Imported, rest: Imported, is_latent: bool, kv_bytes: int
) -> Iterator[HeldBack]:
    part = section.split("_")[0]
    of_values = "latent" if is_latent else f"{'fp8' if kv_bytes == 1 else '16-bit'}, {part}"
    kind = part if part in ("experts", "state") else of_values
    times = dict(rows(rest.profile(), section))
    time_ps = layer_ps(section, list(times.items()), complete.model)
    grids = defaultdict[str, list[Key]](list)
    for name, sizes in map(partial(_sizes, section), times):
        grids[name].append(sizes)
    arrays: dict[str, np.ndarray] = {name: np.array(grid) for name, grid in grids.items()}
    for key, ps in rows(complete.profile(), section):
        if key not in times:
            name, sizes = _sizes(section, key)
            is_inside = name in arrays and _is_between(arrays[name], sizes)
            yield HeldBack(kind, section, key, time_ps(key) / ps - 1 if is_inside else None)


def _is_between(points: np.ndarray, sizes: Key) -> bool:
    """True if a point is no larger than these sizes on every axis, and another no smaller."""
    has_smaller = (points <= sizes).all(axis=1).any()
    has_larger = (points >= sizes).all(axis=1).any()
    return bool(has_smaller and has_larger)


def _sizes(section: str, key: Key) -> tuple[str, Key]:
    """The distribution of tokens over experts, if there are any, and the sizes; of a decode the
    mean context.
    """
    if section == "experts":
        return key[0], key[1:]
    return "", (key[0], key[1] // key[0]) if section.endswith("decode_attention") else key


def layer_ps(section: str, points: Rows, model: ModelSpec) -> Callable[[Key], int]:
    """Picoseconds of one layer, by the key of a section's points."""
    if "prefill" in section:
        prompts = PrefillTable(points, 1)
        return lambda key: prompts(((key[1], key[2]),) * key[0])
    if not section.endswith("decode_attention"):  # by their last axis
        kinds = dict.fromkeys(key[:-1] for key, _ in points)
        curves = {
            kind: Knots((key[-1], ps) for key, ps in points if key[:-1] == kind) for kind in kinds
        }
        return lambda key: curves[key[:-1]](key[-1])
    size = model.window.size if model.window else UNBOUNDED
    in_window = section.startswith("window")
    span = (
        WindowTable(points, size, 1).span
        if in_window
        else partial(DecodeTable(points, 1).span, saved=0)
    )

    def decode(key: Key) -> int:
        n, mean = key[0], key[1] // key[0]
        reads = WindowReads(size, n * min(mean, size), n if mean < size else 0, UNBOUNDED)
        return span(Work(n, key[1], mean, windows=(reads,))).first_ps

    return decode
