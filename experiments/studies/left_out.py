"""A test of costs: each profile is left out, and its decodes, prefills and whole runs are predicted
from the other profiles.

Both sides serve the same requests by the same system with the same software time, so only the
kernels' costs differ.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from sys import maxsize
from typing import Any

import numpy as np
import pandas as pd

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec, ServerSpec
from testbed.cost.analytic import AnalyticCost
from testbed.cost.auto import MEASURED, ROOFLINE, Costs, by_way, carried, read_as
from testbed.cost.known_profiles import Known, profiles_at_hand
from testbed.cost.model import Work
from testbed.cost.profile import ProfileCost
from testbed.experiments.real.importers.imported import Requested
from testbed.experiments.real.importers.known_shapes import gpu_named, gpu_of_device
from testbed.experiments.real.importers.readers import reader_of
from testbed.experiments.runs.choice_names import ANY_SERVER
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
HEAD = (
    "way",
    "predicted from",
    "GPUs",
    "profiles",
    "decodes",
    "prefills",
    "TTFT",
    "TPOT",
    "latency",
)


def left_out_table(folders: Sequence[Path]) -> pd.DataFrame:
    """A row for each profile that ships or is in a folder, and each way that predicts it from the
    others.
    """
    shipped = list(profiles_at_hand(path=None, gpus=[gpu_named(ANY_SERVER)]))
    shards = [(profile.model.name, profile.profile["num_gpus"]) for profile in shipped]
    profiles = shipped + [profile for folder in folders for profile in imported(folder, shards)]
    return pd.DataFrame(tested(profiles, profiles)).fillna("")


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
    yield ROOFLINE, None, AnalyticCost(model, server, _of_cost("roofline"), _of_cost("software"))


def _measured(model: ModelSpec, server: ServerSpec, profile: Any) -> ProfileCost:
    return read_as(_of_cost("choices"), _of_cost("software"), profile, model, server)


def _of_cost(name: str) -> Any:
    """A part of the costs."""
    return _config().cost.parameters[name].make(f"cost.{name}")


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


def error_rows(table: pd.DataFrame) -> Iterator[list[str]]:
    """A line for each way, for the makers of the profiles that it starts from, and for one GPU and
    several.
    """
    makers = table["source_by"].replace({"measured": "ours", "": "a data sheet"})
    several = table["num_gpus"].gt(1).map({False: "one", True: "several"})
    for names, group in table.groupby([table["way"], makers, several]):
        errors = group[
            [name for name in group if name.endswith("_percent") and "p90" not in name]
        ].abs()
        cells = [f"{errors[name].median():.1f} ({errors[name].max():.1f})" for name in errors]
        yield [*map(str, names), f"{len(group)}", *cells]
