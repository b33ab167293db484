"""Each profile left out in turn and predicted from the others, by every way: decodes, prefills and whole runs.

The truth is the profile that was left out. Both sides serve the same requests by the same system with the same
software time, so that what differs is the costs of the kernels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

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
NO_LIMIT = 1 << 60  # bytes: such a pool need not fit beside the weights
Means = dict[str, float]


class Row(NamedTuple):
    """Errors in percent; of decodes and prefills the median and 90th percentile of their sizes, of runs the means'."""

    model: str
    gpu: str
    num_gpus: int
    measured_by: str
    way: str
    source_model: str
    source_gpu: str
    source_num_gpus: int | str
    source_by: str
    decode_percent: float
    decode_p90_percent: float
    prefill_percent: float
    prefill_p90_percent: float
    ttft_percent: float
    tpot_percent: float
    latency_percent: float


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
    """Means of a whole run."""
    config = _config()
    gpu = replace(server.gpu, memory_bytes=NO_LIMIT)
    machine = ServerConfig(server.name, gpu, server.num_gpus, num_blocks=NUM_BLOCKS)
    arrivals = config.arrivals.updated(rate=rate, duration_s=NUM_REQUESTS / rate)
    setup = build(replace(config, model=model, server=machine, arrivals=arrivals, cost=Part(cost)))
    summary = run(setup).summary
    return {name: summary[name]["mean"] for name in ("ttft_s", "tpot_s", "e2e_s")}


def _row(target: Known, way: str, one: Known | None, cost: Costs, truth: Costs, real: Means, ours: Means) -> Row:
    kinds = [_errors(cost, truth, works) for works in (DECODES, PREFILLS)]
    errors = [of(np.abs(kind)) for kind in kinds for of in (np.median, lambda values: np.percentile(values, 90))]
    errors += [100 * (ours[name] / real[name] - 1) for name in real]
    loads, began = target.loads, one.loads if one else None
    source = (began.model.name, one.gpu.name, began.num_gpus, maker(one.profile)) if one and began else ("", "", "", "")
    place = (loads.model.name, target.gpu.name, loads.num_gpus, maker(target.profile))
    return Row(*place, way, *source, *(round(float(error), 1) for error in errors))


def _errors(cost: Costs, truth: Costs, works: Sequence[Work]) -> np.ndarray:
    """Percent by which each iteration is off."""
    return np.array([100 * (cost.iteration(work) / truth.iteration(work) - 1) for work in works])
