"""Run folders: a run, simulated or on a GPU, writes a folder with its config and results, as a
whole or not at all.
"""

import inspect
import json
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from testbed.core.errors import InputError
from testbed.engine.recorder import (
    request_columns,
    span_columns,
    span_columns_in_parts,
    with_identity,
)
from testbed.experiments.runs.known_classes import check_classes
from testbed.experiments.runs.progress import watched
from testbed.experiments.runs.whole_files import (
    SUMMARY,
    whole_folder,
    write_cells,
    write_json,
    write_parts,
    write_text,
)
from testbed.experiments.runs.yaml_values import written_values, yaml_text
from testbed.run.build import Setup, build
from testbed.run.config import RunConfig
from testbed.run.identity import Identity, id_of, identify
from testbed.run.result import Result
from testbed.run.simulate import keys_of_every_summary, run, unwatched
from testbed.run.summaries import ID, RUN

CONFIG = "config.yaml"
INPUTS = "inputs.json"  # hashes of files, plug-ins and code, of which the id was made
COLUMNS = Path(__file__).with_name("COLUMNS.md")
CHARTS = "charts.png"
FILES = {
    CONFIG,
    INPUTS,
    "requests.csv",
    "iterations.csv",
    "timing.json",
    CHARTS,
    "report.html",
    "beams.csv",
    "swaps.csv",
    COLUMNS.name,
    SUMMARY,
}


class StoredRun(NamedTuple):
    """A run in its folder; is_new: it was run now, because it was not complete there."""

    summary: dict[str, Any]
    folder: Path
    is_new: bool

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return str(self.summary[RUN][ID])


def run_into(
    config: RunConfig,
    parent: Path,
    folder: Path | None = None,
    *,
    again: bool = False,
    show: bool = False,
) -> StoredRun:
    """The run in `folder`, by default the folder of its id below `parent`; it is run now if it is
    not complete there, or `again`.

    The folder appears as a whole or not at all, in place of an older run's. With `show` a long
    simulation prints its progress. Raises InputError for a part that a folder cannot record, and
    for a folder that has another run.
    """
    check_recordable(config)
    identity = identify(config)
    folder = folder or parent / identity.id
    is_there = partial(_has, folder, identity.id, again=again)
    if not is_there():
        with whole_folder(folder, is_ours, is_there) as new:
            summary = _measured(config, new, show=show)
            _complete(new, config, identity, summary)
        return StoredRun(_summary_of(folder, identity.id), folder, is_new=True)
    return StoredRun(_summary_of(folder, identity.id), folder, is_new=False)


def _measured(config: RunConfig, folder: Path, *, show: bool) -> Mapping[str, Any]:
    """Run now, on the GPU or in the simulator, and write everything but config and summary."""
    if config.engine:
        return serve(build(config), folder)
    result = run(config, watched if show else unwatched)
    if config.outputs != "summary":
        write_everything(folder, result.setup, result)
    write_json(folder / "timing.json", {"wall_s": result.wall_s})
    return result.summary


def _complete(
    folder: Path, config: RunConfig, identity: Identity, summary: Mapping[str, Any]
) -> None:
    """Write config, inputs and summary."""
    text = yaml_text(config.values)
    write_text(folder / CONFIG, text)
    write_json(folder / INPUTS, identity.inputs)
    write_json(folder / SUMMARY, {**summary, RUN: {**summary[RUN], ID: identity.id}})


def _has(folder: Path, name: str, *, again: bool) -> bool:
    """True if the folder has the complete run of this id, which is not to be run again; raises
    InputError if it has another's.
    """
    summary = None if again else complete(folder)
    if summary is None:
        return False
    if summary[RUN].get(ID, name) != name:
        raise InputError(
            key=folder,
            problem="has another run",
            remedy="--again replaces it; hydra.run.dir=... names another folder",
        )
    return not was_edited(folder)


def _summary_of(folder: Path, name: str) -> dict[str, Any]:
    """The summary of the run of this id; raises InputError if another process has meanwhile put
    its own run there.
    """
    summary = complete(folder)
    if summary is None or summary[RUN].get(ID, name) != name:
        raise InputError(
            key=folder,
            problem="another process has written its run there meanwhile",
            remedy="give each run a folder of its own, by hydra.run.dir=...",
        )
    return summary


def save(result: Result, folder: Path) -> None:
    """Write the folder of a run that was simulated already; refused for objects, and for another
    run's folder.
    """
    config = result.setup.config
    check_recordable(config)
    identity = identify(config)
    summary = complete(folder)
    if summary is not None and summary[RUN].get(ID) != identity.id:
        raise InputError(key=folder, problem="has another run", remedy="name a folder of its own")
    with whole_folder(folder, is_ours, lambda: False) as new:
        write_everything(new, result.setup, result)
        _complete(new, config, identity, result.summary)


def check_recordable(config: RunConfig) -> None:
    """Raise InputError for a part that is an object: a folder records classes by their names."""
    for key, part in config.all_parts:
        is_class = inspect.isclass(part.target) and part.target.__module__ != "__main__"
        if not part.is_named and not is_class:
            raise InputError(
                key=key,
                problem="is an object, which a run folder cannot record",
                remedy="give a class of a module",
            )


def serve(setup: Setup, folder: Path) -> dict[str, Any]:
    """Serve the workload by the GPU engine, and write its tables; returns the summary."""
    try:
        from testbed.kernels.engine.served_run import serve_into
    except ImportError as error:
        raise InputError(
            key="engine",
            value="gpu",
            problem=f"needs the package {error.name}",
            remedy="install torch and CuPy, or omit engine=gpu",
        ) from None
    summary = serve_into(folder, setup)
    if setup.config.outputs == "full":
        import pandas as pd

        requests, spans = (
            pd.read_csv(folder / f"{name}.csv") for name in ("requests", "iterations")
        )
        _draw(folder, requests, spans, setup)
    return summary


def write_everything(folder: Path, setup: Setup, result: Result) -> None:
    """Write the tables of requests and of iteration spans, the meaning of their columns, and, with
    full outputs, their charts.
    """
    recorder = result.recorder
    requests = with_identity(request_columns(recorder), setup.workload.rows)
    write_cells(folder / "requests.csv", requests)
    if setup.config.outputs == "full":
        _draw(folder, requests, span_columns(recorder), setup)
    del requests
    write_parts(folder / "iterations.csv", span_columns_in_parts(recorder))
    write_text(folder / COLUMNS.name, COLUMNS.read_text(encoding="utf-8"))


def _draw(folder: Path, requests: Any, spans: Any, setup: Setup) -> None:
    from testbed.experiments.look.plots import figure_of
    from testbed.experiments.look.plots import save as save_figure
    from testbed.experiments.look.run_charts import run_charts

    charts = run_charts(requests, spans, setup.num_slots)
    save_figure(figure_of(charts, columns=3), folder / CHARTS)


def read_config(folder: Path, plug_ins: Collection[str] = ()) -> RunConfig:
    """The configuration of a run folder. Raises InputError for a class that is not this project's,
    unless the user names it among the plug-ins (MODULE:CLASS).
    """
    path = folder / CONFIG
    if not path.is_file():
        raise InputError(
            key=folder,
            problem=f"not a run folder, it has no {CONFIG}",
            remedy="`testbed run` writes one",
        )
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(
            key=path, problem=f"cannot be read: {' '.join(str(error).split())}"
        ) from error
    check_classes(values, path, plug_ins)
    check_unchanged(folder)
    try:
        return RunConfig.from_values(values)
    except InputError as error:
        raise InputError(key=path, problem=f"not the config of a run: {error}") from error


def check_unchanged(folder: Path) -> None:
    """Raise InputError if the config in a run folder is not that of its run."""
    if was_edited(folder):
        raise InputError(
            key=folder / CONFIG,
            problem="was changed after the run, so it is another run's",
            remedy="testbed run simulates that one",
        )


def changed_since(
    folder: Path, config: RunConfig, part: tuple[float, float | None], end_s: float, shown: str
) -> Iterator[str]:
    """A remark if a simulation repeated to its end stops at another time than the folder's;
    `shown`: the output.
    """
    summary = complete(folder) if part[1] is None and config.window_s is None else None
    if summary and summary["simulated_s"] != end_s:
        yield (
            f"the run ended at {summary['simulated_s']:g} s and would now end at {end_s:g} s: code "
            f"or inputs have changed since, and the {shown} shows the run as it would be now"
        )


def is_ours(name: str) -> bool:
    """True if a file of this name belongs to a run, so that the next run in the folder removes
    it.
    """
    return name in FILES or name.startswith(("memory_map.", "timeline."))


def complete(folder: Path) -> dict[str, Any] | None:
    """The summary in a folder whose run is complete, else None; a summary without a key is
    incomplete.
    """
    try:
        value = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) and keys_of_every_summary() <= value.keys() else None


def was_edited(folder: Path) -> bool:
    """True if the config of a complete run is another one than that of its id.

    The id is recomputed from the values in config.yaml and the hashes recorded in inputs.json, so
    that a run of another version of the package is read too; comments and order do not count. A
    folder without recorded inputs is of another tool and is taken as it is.
    """
    summary, inputs = complete(folder), folder / INPUTS
    if summary is None or ID not in summary[RUN] or not inputs.is_file():
        return False
    try:
        values = written_values((folder / CONFIG).read_text(encoding="utf-8"))
        hashes = json.loads(inputs.read_text(encoding="utf-8"))
        return bool(id_of(values, hashes) != summary[RUN][ID])
    except (OSError, ValueError, TypeError, yaml.YAMLError):
        return True
