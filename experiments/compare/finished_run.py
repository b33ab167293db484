"""A finished run, read from its folder; what an older version did not write is missing, and said to be."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from testbed.core.errors import InputError

TIMES = ("arrival_s", "first_token_s", "finish_s", "prompt_len", "output_len")
SPANS = ("start_s", "duration_s", "iterations", "running", "live", "reserved", "internal")
WHOLE = "run it again with outputs=full for every percentile and for curves"


@dataclass(frozen=True)
class FinishedRun:
    """One run. requests: one row a request; spans: one row a span of identical iterations; None: not written."""

    name: str
    folder: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    requests: pd.DataFrame | None
    spans: pd.DataFrame | None

    @property
    def on_gpu(self) -> bool:
        """Whether an engine has run it with real tensors; a simulated run's summary names no engine."""
        return "engine" in self.summary


def read_runs(arguments: Sequence[str]) -> list[FinishedRun]:
    """The runs of [NAME=]FOLDER arguments; without a name a run has its folder's, longer where two are alike."""
    given = [_named(text) for text in arguments]
    tails = _short_names([folder for _, folder in given])
    names = [name or tail for (name, _), tail in zip(given, tails, strict=True)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"two runs are called {twice[0]}; name them: a={given[0][1]} b={given[1][1]}")
    return [read_run(name, folder) for name, (_, folder) in zip(names, given, strict=True)]


def read_run(name: str, folder: Path) -> FinishedRun:
    """The run in a folder."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give folders that testbed run has left")
    summary = _mapping(folder / "summary.json", json.loads, "the run is not finished, or the folder is not a run's")
    config = _mapping(folder / "config.yaml", yaml.safe_load, "the folder is not a run's")
    requests, spans = _table(folder, "requests", TIMES), _table(folder, "iterations", SPANS)
    return FinishedRun(name, folder, config, summary, requests, spans)


def _named(text: str) -> tuple[str, Path]:
    name, sign, rest = text.partition("=")
    return (name, Path(rest)) if sign and not Path(text).is_dir() else ("", Path(text))


def _short_names(folders: Sequence[Path]) -> list[str]:
    """As much of each path's end as tells it from the others."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-depth:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return names


def _mapping(path: Path, load: Any, otherwise: str) -> dict[str, Any]:
    try:
        value = load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path.parent}: has no {path.name}; {otherwise}") from None
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: holds no names and values; {otherwise}")
    return value


def _table(folder: Path, name: str, needed: Collection[str]) -> pd.DataFrame | None:
    """A table of the run, plain or packed; one that lacks a column is refused by that column's name."""
    paths = [folder / f"{name}.csv", folder / f"{name}.csv.gz"]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return None
    try:
        table = pd.read_csv(path)
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    absent = [name for name in needed if name not in table]
    if absent:
        raise InputError(f"{path}: has no column {absent[0]}; another version wrote it, so run it again")
    return table
