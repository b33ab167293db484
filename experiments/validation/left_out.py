"""Each profile left out in turn and predicted from the others, by every way: decodes, prefills and whole runs.

The truth is the profile that was left out. Both sides serve the same requests by the same system with the same
software time, so that what differs is the costs of the kernels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from testbed.build import build
from testbed.config import RunConfig, ServerConfig
from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec, ServerSpec
from testbed.cost.analytic import AnalyticCost
from testbed.cost.auto import Costs, suited
from testbed.cost.model import Work
from testbed.cost.nearest import MEASURED, ROOFLINE, Known, by_way, carried
from testbed.cost.profile import ProfileCost
from testbed.experiments.commands.import_profile import reader_of
from testbed.experiments.importers.imported import Requested
from testbed.experiments.importers.known_shapes import gpu_of_device
from testbed.experiments.runs.compose import configured
from testbed.parts import Part
from testbed.run import run

DECODES = [Work(seqs, seqs * mean, mean) for seqs in (1, 8, 32, 64, 128) for mean in (128, 512, 2048)]
PREFILLS = [Work(prefill=((new, 0),)) for new in (128, 512, 1024, 2048)]
BATCH, MEAN_OUTPUT, NUM_REQUESTS = 16, 300, 300  # a load that keeps about so many sequences in the batch
SYSTEM = ("+system=vllm-v1", "trace=sharegpt", "outputs=summary", "seed=0")
NUM_BLOCKS = 4096
NO_LIMIT = 1 << 60  # bytes: such a pool need not fit next to the weights
PLACE = ("model", "gpu", "num_gpus", "measured_by")
SOURCE = ("source_model", "source_gpu", "source_num_gpus", "source_by")
RUNS = {"ttft_percent": "ttft_s", "tpot_percent": "tpot_s", "latency_percent": "e2e_s"}
Means = dict[str, float]
Row = dict[str, Any]


def imported(folder: Path, shards: Sequence[tuple[str, int]]) -> Iterator[Known]:
    """The profile in a folder; of a folder with tables for any model, one for each of these shards."""
    reader = reader_of(folder)
    any_model = reader.NAME == "AIConfigurator"
    for model, num_gpus in shards if any_model else [(None, None)]:
        found = reader.read(folder, Requested(model, None, num_gpus))
        gpu = gpu_of_device(found.device) or found.gpu  # that of a run, which may differ from the source's
        if gpu is None:
            raise InputError(f"{folder}: no data sheet of {found.device}; nothing can be derived for it")
        yield Known(found.profile(), replace(gpu, device=found.device))


def tested(known: Sequence[Known], targets: Sequence[Known]) -> Iterator[Row]:
    """A row for each target, way and maker of the profiles that it is predicted from: ours, and the target's."""
    for target in targets:
        model, num_gpus = target.loads.model, target.loads.num_gpus
        server = ServerSpec(target.gpu.name, target.gpu, num_gpus)
        truth = _measured(model, server, target.profile)
        rate = BATCH / (MEAN_OUTPUT * truth.iteration(DECODES[4]) / 1e12)
        served = _served(truth, model, server, rate)
        for way, one, cost in _predictions(model, server, [other for other in known if other is not target]):
            yield _row(target, way, one, cost, truth, served, _served(cost, model, server, rate))


def maker(profile: Any) -> str:
    """Who measured it."""
    return str(profile["fingerprint"]["source"]).removeprefix("imported from ")


def _predictions(
    model: ModelSpec, server: ServerSpec, others: Sequence[Known]
) -> Iterator[tuple[str, Known | None, Costs]]:
    for who in dict.fromkeys(maker(one.profile) for one in others):
        theirs = [one for one in others if maker(one.profile) == who]
        for way, one in by_way(model, server, theirs).items():
            if way != MEASURED:  # another's measurement of the same is no prediction
                yield way, one, _measured(model, server, carried(way, one, model, server, theirs))
    efficiencies = _config().cost.parameters["roofline"].make("cost.roofline")
    yield ROOFLINE, None, AnalyticCost(model, server, efficiencies)


def _measured(model: ModelSpec, server: ServerSpec, profile: Any) -> ProfileCost:
    choices = _config().cost.parameters["choices"].make("cost.choices")
    return ProfileCost(model, server, profile, suited(choices, profile))


@cache
def _config() -> RunConfig:
    return configured(SYSTEM)


def _served(cost: Costs, model: ModelSpec, server: ServerSpec, rate: float) -> Means:
    config = _config()
    gpu = replace(server.gpu, memory_bytes=NO_LIMIT)
    machine = ServerConfig(server.name, gpu, server.num_gpus, num_blocks=NUM_BLOCKS)
    arrivals = config.arrivals.updated(rate=rate, duration_s=NUM_REQUESTS / rate)
    setup = build(replace(config, model=model, server=machine, arrivals=arrivals, cost=Part(cost)))
    summary = run(setup).summary
    return {column: summary[name]["mean"] for column, name in RUNS.items()}


def _row(target: Known, way: str, one: Known | None, cost: Costs, truth: Costs, real: Means, ours: Means) -> Row:
    """Errors in percent; of decodes and prefills the median and 90th percentile of their sizes, of runs the means'."""
    errors: dict[str, float] = {}
    for kind, works in (("decode", DECODES), ("prefill", PREFILLS)):
        off = [100 * abs(cost.iteration(work) / truth.iteration(work) - 1) for work in works]
        errors |= {f"{kind}_percent": np.median(off), f"{kind}_p90_percent": np.percentile(off, 90)}
    errors |= {column: 100 * (ours[column] / real[column] - 1) for column in RUNS}
    source = _place(one, SOURCE) if one else dict.fromkeys(SOURCE, "")
    rounded = {name: round(float(error), 1) for name, error in errors.items()}
    return {**_place(target, PLACE), "way": way, **source, **rounded}


def _place(known: Known, columns: Sequence[str]) -> Row:
    values = known.loads.model.name, known.gpu.name, known.loads.num_gpus, maker(known.profile)
    return dict(zip(columns, values, strict=True))
