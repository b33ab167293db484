"""A profile without a GPU: one of another server, scaled to a benchmark client's logs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from testbed.core.errors import InputError
from testbed.cost.profile import read_profile
from testbed.cost.sections import dump
from testbed.experiments.real.importers.known_shapes import gpu_named, model_named
from testbed.experiments.real.validation import profile_fit
from testbed.experiments.real.validation.log_replay import replay
from testbed.experiments.real.validation.logged_server import LoggedServer
from testbed.experiments.real.validation.software_fit import KERNELS, Fitted, Problem, fit
from testbed.experiments.runs.progress import status_line
from testbed.experiments.runs.whole_files import write_text
from testbed.traces.vllm_log import VllmLog

Replayed = tuple[list[VllmLog], list[LoggedServer]]


class ScaledProfile(NamedTuple):
    """The profile, remarks on it, and its errors in the part that was fitted and in the other."""

    profile: dict[str, Any]
    remarks: Sequence[str]
    errors: Mapping[str, Any]


def starting_profile(
    source: str | None, model: str | None, gpu: str | None, tensor_parallel: int
) -> dict[str, Any]:
    """The profile to scale: `source`, a file or a name that ships, else the nearest one; carried
    to the model and GPU.
    """
    shape = model_named(model) if model else None
    sheet = gpu_named(gpu) if gpu else None
    if source:
        return profile_fit.carried(read_profile(source), shape, sheet)
    if shape is None or sheet is None:
        raise InputError(
            key="--model, --gpu",
            problem="both select the nearest profile",
            remedy="give both, or a profile by --from",
        )
    return profile_fit.nearest(shape, tensor_parallel, sheet)


def description(base: Mapping[str, Any]) -> str:
    """The scaled profile, in one line."""
    fingerprint = base["fingerprint"]
    source = fingerprint.get("from", fingerprint)
    gpus = f"{base['num_gpus']} x {source.get('device')} ({source.get('source')})"
    carried = (
        f", carried to the data sheet of {fingerprint['device']}" if "from" in fingerprint else ""
    )
    return f"scaled: {base['model']['name']} on {gpus}{carried}"


def scaled(base: dict[str, Any], replayed_with: Callable[[str], Replayed]) -> ScaledProfile:
    """Fit the first log. replayed_with(PATH) gives the logs and their servers with the costs of the
    profile in PATH. The second log judges; a single one is halved in time.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        write_text(path, dump(base))
        logs, servers = replayed_with(str(path))
        if len(logs) > 2:
            raise InputError(
                key=f"{len(logs)} logs",
                problem="one is fitted and one judges",
                remedy="leave out the others",
            )
        until_s = profile_fit.half_time(logs[0]) if len(logs) == 1 else inf
        problem = Problem(logs[0], servers[0].config, until_s)
        with status_line(problem.progress):
            fitted = fit(problem)
        profile = profile_fit.fitted_profile(base, fitted, logs[0].path)
        write_text(path, dump(profile))
        errors = _errors(logs, servers, until_s)
    return ScaledProfile(profile, [*_lines(fitted), *servers[-1].notes], errors)


def _lines(fitted: Fitted) -> Iterator[str]:
    """One line for the factor of all kernels, one per time, and one per correlated pair."""
    errors = fitted.standard_errors
    error = f"{errors[KERNELS]:.3f}"
    yield f"all kernels: {fitted.factor:.3f} times as long, standard error {error}"
    for name, seconds in fitted.times_s.items():
        yield f"{name:<12}{seconds * 1e6:12.2f} us, standard error {errors[name] * 1e6:.2f} us"
    for (first, other), value in fitted.alike.items():
        yield f"{first} and {other} cannot be separated by this log (correlation {value:+.2f})"


def _errors(
    logs: Sequence[VllmLog], servers: Sequence[LoggedServer], until_s: float
) -> dict[str, Any]:
    runs = [replay(log, config) for log, (config, _) in zip(logs, servers, strict=True)]
    after_s = 0.0 if until_s == inf else until_s
    return {
        "fitted": profile_fit.errors(logs[0].times, runs[0].times, until_s=until_s),
        "not fitted": profile_fit.errors(logs[-1].times, runs[-1].times, after_s=after_s),
    }
