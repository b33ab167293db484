"""A finished run, read from its folder; numbers that an older version did not write are None."""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from testbed.core.errors import InputError
from testbed.core.renamed import check_columns
from testbed.description import RUN
from testbed.experiments.runs.one_line import short_names
from testbed.experiments.runs.summary_table import described
from testbed.metrics import overload

TIMES = ("arrival_s", "first_token_s", "finish_s", "prompt_len", "output_len")
SPANS = ("start_s", "duration_s", "iterations", "running", "live", "reserved", "internal")
WHOLE = "run it again with outputs=full for curves"


@dataclass(frozen=True)
class FinishedRun:
    """One run. requests: one row per request; spans: one row per span of identical iterations; None: not written.

    folder: None for a result in a notebook.
    """

    name: str
    folder: Path | None
    config: dict[str, Any]
    summary: dict[str, Any]
    requests: pd.DataFrame | None
    spans: pd.DataFrame | None

    @property
    def on_gpu(self) -> bool:
        """Whether an engine ran it on real tensors; a simulated run's summary names no engine."""
        return "engine" in self.summary

    @property
    def overload(self) -> dict[str, float] | None:
        """Served and offered rates if the server did not keep up; None without the table of requests."""
        if self.requests is None:
            return None
        arrival, first = (self.requests[name].to_numpy(float) for name in ("arrival_s", "first_token_s"))
        return overload(arrival, first)

    @property
    def config_text(self) -> str:
        """The text of its config file."""
        if self.folder is None:
            return str(yaml.safe_dump(self.config, sort_keys=False))
        return (self.folder / "config.yaml").read_text(encoding="utf-8")

    @property
    def what_it_was(self) -> str:
        """Model, server, policy, scheduler and workload; empty where another version wrote the summary."""
        engine = ["served by the engine"] if self.on_gpu else []
        return "; ".join([*described(self.summary.get(RUN, {})).values(), *engine])


def read_runs(arguments: Sequence[str]) -> list[FinishedRun]:
    """The runs of [NAME=]FOLDER arguments; the default name is the folder's, with parents where two are equal."""
    named = [_named(text) for text in arguments]
    tails = short_names([folder for _, folder in named])
    names = [name or tail for (name, _), tail in zip(named, tails, strict=True)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"{twice[0]}: is the name of two runs (name them: a={named[0][1]} b={named[1][1]})")
    return [read_run(name, folder) for name, (_, folder) in zip(names, named, strict=True)]


def read_run(name: str, folder: Path) -> FinishedRun:
    """The run in a folder."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder (give folders that `testbed run` has written)")
    summary = _mapping(folder / "summary.json", json.loads, "the run is not finished, or the folder is not a run's")
    config = _mapping(folder / "config.yaml", yaml.safe_load, "the folder is not a run's")
    requests, spans = _table(folder, "requests", TIMES), _table(folder, "iterations", SPANS)
    return FinishedRun(name, folder, config, summary, requests, spans)


def _named(text: str) -> tuple[str, Path]:
    name, sign, rest = text.partition("=")
    return (name, Path(rest)) if sign and not Path(text).is_dir() else ("", Path(text))


def _read(path: Path, load: Callable[[Path], Any]) -> Any:
    try:
        return load(path)
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None


def _mapping(path: Path, load: Callable[[str], Any], otherwise: str) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"{path.parent}: has no {path.name}; {otherwise}")
    value = _read(path, lambda path: load(path.read_text(encoding="utf-8")))
    if not isinstance(value, dict):
        raise InputError(f"{path}: contains no names and values; {otherwise}")
    return value


def _table(folder: Path, name: str, needed: Collection[str]) -> pd.DataFrame | None:
    """A table of the run, plain or packed; one that lacks a column is refused by that column's name."""
    paths = [folder / f"{name}.csv", folder / f"{name}.csv.gz"]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return None
    table: pd.DataFrame = _read(path, pd.read_csv)
    check_columns(path, table.columns)
    absent = [name for name in needed if name not in table]
    if absent:
        raise InputError(f"{path}: has no column {absent[0]}; another version wrote it (run it again)")
    return table
