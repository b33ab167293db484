"""Profiles of servers that were not measured: the nearest profile, changed by a fit to logs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from testbed.core.content_hash import content_hash
from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec, ModelSpec
from testbed.cost.derive import derive, measured
from testbed.cost.known_profiles import shipped
from testbed.experiments.real.importers.known_shapes import gpu_of_device
from testbed.experiments.real.validation.deviations import compare
from testbed.experiments.real.validation.log_replay import FRONT_END, US
from testbed.experiments.real.validation.metric_error import MetricError
from testbed.experiments.real.validation.software_fit import FRONT, ITERATION, Fitted
from testbed.traces.vllm_log import Times, VllmLog

FEWEST = 10  # requests on each side of a log that is split
UNSCALED = {"unequal_lengths", "overhead", "all_reduce", "swap"}  # sections that are no kernels
# Software times of the section `overhead` by what is fitted; requests' and tokens' are not
OVERHEAD = {name: name for name in (ITERATION, "request", "token")}
OVERHEAD |= dict(zip(FRONT, FRONT_END, strict=True))
Profile = dict[str, Any]


def nearest(model: ModelSpec, num_gpus: int, gpu: GpuSpec) -> Profile:
    """A shipped profile of the model's shape and number of GPUs, carried to the GPU's data sheet.

    A profile of the same GPU is preferred.
    """
    alike = [
        profile
        for profile in shipped()
        if profile["num_gpus"] == num_gpus and ModelSpec(**profile["model"]).is_shaped_like(model)
    ]
    if not alike:
        raise InputError(
            key="model",
            value=model.name,
            problem=f"no profile that ships has its shape on {num_gpus} GPU(s)",
            remedy="give one by --from, such as import profile makes of AIConfigurator's tables",
        )
    near = min(
        alike,
        key=lambda profile: profile["fingerprint"].get("device") not in (gpu.name, gpu.device),
    )
    return carried(near, model, gpu)


def carried(profile: Mapping[str, Any], model: ModelSpec | None, gpu: GpuSpec | None) -> Profile:
    """The profile under the model's name, carried to the GPU by the two data sheets."""
    if model is not None:
        if not ModelSpec(**profile["model"]).is_shaped_like(model):
            raise InputError(
                key="--from",
                problem=(
                    f"that profile is of {profile['model']['name']}, another shape than "
                    f"{model.name}"
                ),
            )
        profile = {**profile, "model": asdict(model)}
    device = profile["fingerprint"].get("device", "an unknown device")
    if gpu is not None and device not in (gpu.name, gpu.device):
        source = gpu_of_device(device)
        if source is None:
            raise InputError(
                key="--from",
                problem=(
                    f"there is no data sheet of {device}, so no profile can be derived for "
                    f"{gpu.name}"
                ),
            )
        profile = derive(profile, source, gpu)
    sheet = gpu or (GpuSpec(**profile["gpu"]) if profile.get("gpu") else gpu_of_device(device))
    return {**profile, "gpu": None if sheet is None else asdict(sheet)}


def fitted_profile(profile: Profile, fitted: Fitted, path: str) -> Profile:
    """The profile with the kernels scaled and the software times of the log's machine. It says
    which log they were fitted on, so that validate can say so.
    """
    times_us = {name: seconds * US for name, seconds in fitted.times_s.items()}
    overhead = {
        "covers": "as named",
        "axes": ["what"],
        "columns": ["us"],
        "note": "software times fitted on a server's log",
        "points": [[row, times_us.get(name, 0.0)] for name, row in OVERHEAD.items()],
    }
    fingerprint = {
        **profile["fingerprint"],
        "software_fitted_on": {Path(path).name: content_hash(path)},
        "source": "scaled to a log",
        "kernel_factor": round(fitted.factor, 4),
        "from": profile["fingerprint"],
    }
    sections = {**scaled(profile["sections"], fitted.factor), "overhead": overhead}
    return {**profile, "sections": sections, "fingerprint": fingerprint}


def half_time(log: VllmLog) -> float:
    """Half of the log's duration (s); InputError if too few requests end in one half."""
    until_s = float(log.times.finish_s.max()) / 2
    ended = int((log.times.finish_s <= until_s).sum())
    if min(ended, len(log.times.finish_s) - ended) < FEWEST:
        raise InputError(
            key=log.path,
            problem=f"{ended} of its requests end in its first half",
            remedy="give a second log to judge by",
        )
    return until_s


def errors(
    real: Times, simulated: Times, after_s: float = 0.0, until_s: float = float("inf")
) -> list[MetricError]:
    """The errors of the requests between two moments (s).

    TTFT is of the requests whose first token came in between, TPOT and latency of those that ended.
    """
    rows: list[MetricError] = []
    for moments, kinds in ((real.first_token_s, ("ttft",)), (real.finish_s, ("tpot", "e2e"))):
        is_inside = (moments > after_s) & (moments <= until_s)
        compared = compare("", real.take(is_inside), simulated.take(is_inside))
        rows += [row for row in compared if row.metric.startswith(kinds)]
    return rows


def table(parts: Mapping[str, Sequence[MetricError]]) -> Iterator[tuple[str, ...]]:
    """A row for each metric, with its error in each part."""
    columns = [
        {row.metric: f"{row.error_percent:+.1f}%" for row in rows} for rows in parts.values()
    ]
    for metric in dict.fromkeys(name for column in columns for name in column):
        yield metric, *(column.get(metric, "-") for column in columns)


def scaled(sections: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """The sections with `factor` times the kernels' times."""
    changed = dict(sections)
    for name in changed.keys() - UNSCALED:
        points = [
            [*key, *(round(factor * us, 3) for us in times)]
            for key, times in measured(changed[name])
        ]
        changed[name] = {**changed[name], "points": points}
    return changed
