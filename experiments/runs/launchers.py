"""Launchers of the jobs of a sweep: in this process, by a backend of joblib, or on a cluster by
submitit. The words are those of a Hydra user: hydra/launcher=joblib hydra.launcher.n_jobs=4.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import signature
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from testbed.core.errors import InputError
from testbed.core.spelling import did_you_mean
from testbed.experiments.runs.words import LAUNCHER
from testbed.run.override_words import key_of

Job = Callable[[], Any]
BASIC = "basic"
CLUSTERS = {"submitit_local": "local", "submitit_slurm": "slurm"}
OF_ANY_CLUSTER = (
    "name",
    "nodes",
    "gpus_per_node",
    "tasks_per_node",
    "cpus_per_task",
    "mem_gb",
    "timeout_min",
    "stderr_to_stdout",
)  # submitit's names; it takes others behind that of the cluster, as slurm_partition


def launched(words: Sequence[str], jobs: Sequence[Job], folder: Path) -> Iterable[Any]:
    """The results of the jobs, in their order, from the launcher that the words name; one by one
    if it runs them in this process.

    A job and its result must pickle. folder: where a cluster's files are written. Raises InputError
    for a launcher, or a setting of it, that does not exist, and for one that is not installed.
    """
    names = [word.partition("=")[2] for word in words if key_of(word) == LAUNCHER]
    name = names[-1] if names else BASIC
    settings = dict(_settings(words))
    if name == BASIC:
        _check_settings(name, settings, ())
        return (job() for job in jobs)
    try:
        if name in CLUSTERS:
            return _by_submitit(CLUSTERS[name], settings, jobs, folder)
        if name in BACKENDS:
            return _by_joblib(name, settings, jobs)
    except ImportError as error:
        raise InputError(
            key=LAUNCHER,
            value=name,
            problem=f"needs the package {error.name}",
            remedy=f"pip install {error.name}",
        ) from None
    choices = [BASIC, *BACKENDS, *CLUSTERS]
    raise InputError(
        key=LAUNCHER,
        value=name,
        problem=f"is no launcher{did_you_mean(name, choices)}",
        remedy=f"choose from {', '.join(choices)}",
    )


def _settings(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The values of hydra.launcher.KEY=VALUE, by KEY."""
    above = LAUNCHER.replace("/", ".") + "."
    settings = [word for word in words if key_of(word).startswith(above)]
    for override in OverridesParser.create().parse_overrides(settings):
        yield override.key_or_group.removeprefix(above), override.value()


def _check_settings(name: str, settings: Mapping[str, Any], names: Sequence[str]) -> None:
    unknown = next((key for key in settings if key not in names), None)
    if unknown is not None:
        raise InputError(
            key=f"hydra.launcher.{unknown}",
            problem=f"is no setting of {LAUNCHER}={name}{did_you_mean(unknown, names)}",
        )


def _by_joblib(name: str, settings: Mapping[str, Any], jobs: Sequence[Job]) -> list[Any]:
    """All cores, or hydra.launcher.n_jobs; other settings are those of joblib.Parallel."""
    from joblib import Parallel, delayed

    own = ("address",) if name == "dask" else ()
    _check_settings(name, settings, [*signature(Parallel).parameters, *own])
    with BACKENDS[name](settings.get("address")):
        parallel = Parallel(**{"n_jobs": -1, **_without(settings, own)})
        return list(parallel(delayed(job)() for job in jobs))


@contextmanager
def _ray(_: str | None) -> Iterator[None]:
    """Run joblib's calls on the Ray cluster at RAY_ADDRESS, or on a local one if it is not set."""
    import joblib
    from ray.util.joblib import register_ray

    register_ray()
    with joblib.parallel_config("ray"):
        yield


@contextmanager
def _dask(address: str | None) -> Iterator[None]:
    """Run joblib's calls on the Dask scheduler at this address, or on a local one without it."""
    import joblib
    from distributed import Client

    with Client(address), joblib.parallel_config("dask"):
        yield


def _loky(_: str | None) -> AbstractContextManager[None]:
    return nullcontext()


BACKENDS: dict[str, Callable[[str | None], AbstractContextManager[None]]] = {
    "joblib": _loky,
    "ray": _ray,
    "dask": _dask,
}


def _by_submitit(
    cluster: str, settings: Mapping[str, Any], jobs: Sequence[Job], folder: Path
) -> list[Any]:
    """One task of the cluster for each job; submitit writes its files into folder/.submitit."""
    from submitit import AutoExecutor

    executor = AutoExecutor(folder=folder / ".submitit", cluster=cluster)
    named = {
        key if key in OF_ANY_CLUSTER or cluster == "local" else f"{cluster}_{key}": value
        for key, value in settings.items()
    }
    try:
        executor.update_parameters(**named)
    except (NameError, TypeError) as error:
        raise InputError(key="hydra.launcher", problem=str(error)) from None
    with executor.batch():
        tasks = [executor.submit(job) for job in jobs]
    return [task.result() for task in tasks]


def _without(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in names}
