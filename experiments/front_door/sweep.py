"""`testbed.sweep`: every combination of lists of options, on all cores, as one data frame."""

import os
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.front_door.options import asked, made
from experiments.runs.flat_summary import flat
from experiments.runs.identity import run_id
from experiments.runs.point import holds, run, run_into
from experiments.runs.sweep_table import beside
from testbed.core.errors import InputError
from testbed.core.request import Request

if TYPE_CHECKING:
    import pandas as pd


def sweep(*overrides: str, jobs: int | None = None, folder: str | Path | None = None, **options: Any) -> "pd.DataFrame":
    """One row for each combination of options; an option that is a list is an axis, a tuple is one value.

    Options are those of `simulate`. A list of requests is a trace and no axis; several are a list of lists.
    Columns: the axes, what each run was, then its summary, nested names joined by an underscore (ttft_s_p95: s). An
    axis that has the name of such a column leaves it the name `..._in_full`.

    jobs: processes, by default one for each core. folder: where run folders are kept, as `testbed run` keeps them; what
    is complete there is not run again. It takes names alone, for a folder cannot hold an object.
    """
    import pandas as pd
    from joblib import Parallel, delayed

    if jobs is not None and (type(jobs) is not int or jobs < 1):
        raise InputError(f"jobs is {jobs!r}; it must be a whole number of at least 1, or None for all cores")
    axes = {key: list(value) for key, value in options.items() if is_axis(value)}
    if any(not values for values in axes.values()):
        raise InputError(f"{next(key for key, values in axes.items() if not values)} is an empty list")
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    workers = min(jobs or os.cpu_count() or 1, len(points))
    work = (delayed(row)(overrides, {**options, **point}, folder) for point in points)
    found = Parallel(n_jobs=workers)(work)
    return pd.DataFrame([{**told(point), **beside(list(axes), one)} for point, one in zip(points, found, strict=True)])


def is_axis(value: Any) -> bool:
    """Whether an option has several values, one after another."""
    if isinstance(value, list):
        return not (value and isinstance(value[0], Request))
    return isinstance(value, range) or (type(value).__name__ == "ndarray" and value.ndim == 1)


def row(overrides: Sequence[str], options: Mapping[str, Any], folder: str | Path | None) -> dict[str, Any]:
    """One point's summary as a row."""
    return flat(measured(overrides, options, folder))


def measured(overrides: Sequence[str], options: Mapping[str, Any], folder: str | Path | None) -> dict[str, Any]:
    """The summary of a run; from its folder, if there is one below `folder`."""
    if folder is None:
        config, objects = asked(overrides, options)
        return run(made(config, objects)).summary
    config, objects = asked(overrides, {"outputs": "summary", **options})
    if objects:
        raise InputError(f"{next(iter(objects))} is an object, which no run folder can hold; leave out folder")
    place = Path(folder) / run_id(config)
    return holds(place, config) or run_into(config, place)


def told(point: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a point; classes and functions by their names."""
    return {key: getattr(value, "__name__", value) for key, value in point.items()}
