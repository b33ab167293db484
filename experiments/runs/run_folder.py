"""Run folders: a run, simulated or on a GPU, writes a folder with its config and results, as a
whole or not at all.

Files that a plug-in opens and no parameter names are found by Python's audit events while a run is
built. A run's id is known before the run, so it cannot cover them; the run folder keeps their
hashes, and a run is complete only while they are the same. What goes unseen: a file that C code
opens by itself, one that is opened in the middle of the simulation, and one that a module opened
when an earlier run of the same process imported it.
"""

import hashlib
import inspect
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.util import source_from_cache
from pathlib import Path
from typing import Any

import yaml

from testbed.build import Setup, build
from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.description import ID, RUN
from testbed.engine.recorder import request_columns, span_columns, with_identity
from testbed.experiments.runs.progress import watched
from testbed.experiments.runs.whole_files import (
    SUMMARY,
    whole_folder,
    write_cells,
    write_json,
    write_text,
)
from testbed.identity import INSTALLED, ROOT, content_hash, input_files, run_id
from testbed.result import Result
from testbed.run import Run, keys_of_every_summary, run
from testbed.trusted import check_classes

INPUTS = "inputs.json"
_under_way: list[set[str]] = []
COLUMNS = Path(__file__).with_name("COLUMNS.md")
CONFIG = "config.yaml"
SEAL = "# sha256 of the lines above, as the run had them: "
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
    "memory.png",
    "latency_cdf.png",
    "batch.png",  # the last three are of older versions
}


@contextmanager
def opened_files() -> Iterator[set[str]]:
    """The paths of all files that are opened for reading while the body runs."""
    _listen()
    found = set[str]()
    _under_way.append(found)
    try:
        yield found
    finally:
        _under_way.remove(found)


def hashes(opened: Iterable[str], config: RunConfig) -> dict[str, str]:
    """SHA-256 of those files by path that the config does not name, and that belong neither to
    Python nor to us.
    """
    if all(part.name.startswith("testbed.") for part in config.parts.values()):
        return {}
    named = {path.resolve() for _, path in input_files(config)}
    sources = (source_from_cache(path) if path.endswith(".pyc") else path for path in opened)
    paths = (
        path for path in sorted({Path(path).resolve() for path in sources}) if path not in named
    )
    ours = [ROOT, *((ROOT / name).resolve() for name in ("traces", "kernels", "experiments"))]
    others = [
        Path(folder).resolve() for folder in (sys.prefix, sys.base_prefix, "/proc", "/sys", "/dev")
    ]
    theirs = (
        path
        for path in paths
        if not any(path.is_relative_to(folder) for folder in (*ours, *others))
    )
    return {
        str(path): content_hash(path)
        for path in theirs
        if path.is_file() and INSTALLED.isdisjoint(path.parts)
    }


@cache
def _listen() -> None:
    """Once in a process, for a hook stays for good."""
    sys.addaudithook(_heard)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _under_way or isinstance(arguments[0], int):
        return
    path, mode, flags = arguments
    if flags & os.O_ACCMODE == os.O_RDONLY if mode is None else not set(mode) & set("wax+"):
        path = os.path.abspath(os.fsdecode(path))
        for found in _under_way:
            found.add(path)


def run_into(
    config: RunConfig, folder: Path, *, again: bool = False, show: bool = False
) -> tuple[dict[str, Any], bool]:
    """The summary of the run in the folder, and whether it was run now, because it was not complete
    there or `again`.

    The folder is written as a whole or not at all, in place of an older run's files. With `show` a
    long simulation prints its progress.
    """
    name = run_id(config)
    if not again and (known := load_complete_run(folder, name)):
        return known, False
    if not again and is_of_another(folder, name):
        raise InputError(
            f"{folder}: has another run (--again replaces it; hydra.run.dir=... names another "
            f"folder)"
        )
    with opened_files() as opened:
        setup = build(config)
    with whole_folder(folder, SUMMARY, is_ours) as new:
        if found := hashes(opened, config):
            write_json(new / INPUTS, found)
        if config.engine:
            return _complete(new, config, name, _serve(setup, new)), True
        result = run(setup, watched) if show else run(setup)
        if config.outputs == "full":
            write_everything(new, setup, result)
        write_json(new / "timing.json", {"wall_s": result.wall_s})
        return _complete(new, config, name, result.summary), True


def _complete(
    folder: Path, config: RunConfig, name: str, summary: dict[str, Any]
) -> dict[str, Any]:
    write_text(
        folder / CONFIG, sealed(yaml.safe_dump(config.values, sort_keys=False, allow_unicode=True))
    )
    summary = {**summary, RUN: {**summary[RUN], ID: name}}
    write_json(folder / SUMMARY, summary)
    return summary


def sealed(text: str) -> str:
    """The text of a config with a last line that goes with these very words."""
    return f"{text}{SEAL}{hashlib.sha256(text.encode()).hexdigest()}\n"


def save(result: Result, folder: Path) -> None:
    """Write the folder of a run that was simulated already; refused for objects, and for another
    run's folder.
    """
    config = named(result.setup.config)
    name = run_id(config)
    if is_of_another(folder, name):
        raise InputError(f"{folder}: has another run (name a folder of its own)")
    with whole_folder(folder, SUMMARY, is_ours) as new:
        write_everything(new, result.setup, result)
        _complete(new, config, name, result.summary)


def named(config: RunConfig) -> RunConfig:
    """The config with classes by their names; raises InputError for an object, which a run folder
    cannot record.
    """
    parts = {key: part for key, part in config.parts.items() if not part.is_named}
    for key, part in parts.items():
        if not inspect.isclass(part.target) or part.target.__module__ == "__main__":
            raise InputError(
                f"{key}: is an object, which a run folder cannot record (give a class of a module)"
            )
    changed: dict[str, Any] = {key: replace(part, target=part.name) for key, part in parts.items()}
    return replace(config, **changed)


def _serve(setup: Setup, folder: Path) -> dict[str, Any]:
    try:
        from testbed.kernels.engine.serve import serve_into
    except ImportError as error:
        raise InputError(
            f"engine=gpu: needs the package {error.name} (install torch and CuPy, or omit "
            f"engine=gpu)"
        ) from None
    summary = serve_into(folder, setup)
    if setup.config.outputs == "full":
        import pandas as pd

        requests, spans = (
            pd.read_csv(folder / f"{name}.csv") for name in ("requests", "iterations")
        )
        _draw(folder, requests, spans, setup)
    return summary


def write_everything(folder: Path, setup: Setup, result: Run | Result) -> None:
    """Write the tables of requests and of iteration spans, the meaning of their columns, and their
    charts.
    """
    requests = with_identity(request_columns(result.recorder), setup.workload.rows)
    spans = span_columns(result.recorder)
    write_cells(folder / "requests.csv", requests)
    write_cells(folder / "iterations.csv", spans)
    write_text(folder / COLUMNS.name, COLUMNS.read_text(encoding="utf-8"))
    _draw(folder, requests, spans, setup)


def _draw(folder: Path, requests: Any, spans: Any, setup: Setup) -> None:
    from testbed.experiments.runs import (
        plots,
    )  # it imports matplotlib, which `summary` outputs need not

    figure = plots.figure_of(plots.run_charts(requests, spans, setup.pool.num_slots), columns=3)
    plots.save(figure, folder / CHARTS)


def read_config(folder: Path, *, trusts_plug_ins: bool = False) -> RunConfig:
    """The configuration of a run folder. Raises InputError for a class that is not this project's,
    unless the user trusts the folder's plug-ins.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise InputError(
            f"{folder}: not a run folder, it has no {CONFIG} (`testbed run` writes one)"
        )
    try:
        text = path.read_text(encoding="utf-8")
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    written, seal, _ = text.partition(SEAL)
    if seal and sealed(written) != text:
        raise InputError(
            f"{path}: was changed after the run, so it is another run's (testbed run simulates "
            f"that one)"
        )
    if not trusts_plug_ins:
        check_classes(values, path)
    try:
        return RunConfig.from_values(values)
    except InputError as error:
        raise InputError(f"{path}: not the config of a run: {error}") from error


def changed_since(
    folder: Path, config: RunConfig, part: tuple[float, float | None], end_s: float, shown: str
) -> Iterator[str]:
    """A remark where a simulation repeated to its end stops at another time than the folder's;
    `shown`: the output.
    """
    summary = complete(folder) if part[1] is None and config.window_s is None else None
    if summary and summary["simulated_s"] != end_s:
        yield (
            f"the run ended at {summary['simulated_s']:g} s and would now end at {end_s:g} s: code "
            f"or inputs have "
            f"changed since, and the {shown} shows the run as it would be now"
        )


def is_ours(name: str) -> bool:
    """Whether a file of this name belongs to a run, so that the next run in the folder removes
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


def is_of_another(folder: Path, name: str) -> bool:
    """Whether a folder has the complete run of another id."""
    summary = complete(folder)
    return summary is not None and summary[RUN].get(ID, name) != name


def load_complete_run(folder: Path, name: str) -> dict[str, Any] | None:
    """The summary in a folder with the complete run of this id, whose opened files are what they
    were; else None.
    """
    summary, inputs = complete(folder), folder / INPUTS
    if summary is None or summary[RUN].get(ID) != name:
        return None
    kept = json.loads(inputs.read_text(encoding="utf-8")) if inputs.is_file() else {}
    changed = any(
        not Path(path).is_file() or content_hash(path) != digest for path, digest in kept.items()
    )
    return None if changed else summary


def measure(config: RunConfig, parent: Path) -> dict[str, Any]:
    """The summary of a run, from its folder below `parent` if it is complete there, else simulated
    into it.
    """
    if built := next((name for name, part in config.parts.items() if not part.is_named), None):
        raise InputError(f"{built}: is an object, which a run folder cannot record (omit `folder`)")
    return run_into(config, parent / run_id(config))[0]
