"""A finished run, read from its folder."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from testbed.core.errors import InputError
from testbed.experiments.runs.run_folder import check_unchanged
from testbed.experiments.runs.run_words import run_words
from testbed.experiments.runs.whole_files import SUMMARY
from testbed.run.simulate import OVERLOAD, keys_of_every_summary
from testbed.run.summaries import ENGINES, RUN, was_served
from testbed.traces.files import plain_or_packed

TIMES = (
    "request_id",
    "arrival_s",
    "first_token_s",
    "finish_s",
    "ttft_s",
    "tpot_s",
    "e2e_s",
    "prompt_len",
    "output_len",
)
SPANS = (
    "start_s",
    "duration_s",
    "iterations",
    "running",
    "waiting",
    "swapped",
    "live",
    "reserved",
    "internal",
    "cached",
)
SLOTS = "pool_slots"
WHOLE = "run it again with outputs=tables for curves"


@dataclass(frozen=True)
class FinishedRun:
    """A finished run.

    requests: a row per request; spans: a row per span of identical iterations; None if the run
    wrote no such table. folder: None for a result in a notebook.
    """

    name: str
    folder: Path | None
    config: dict[str, Any]
    summary: dict[str, Any]
    requests: pd.DataFrame | None
    spans: pd.DataFrame | None

    @property
    def on_gpu(self) -> bool:
        """True if an engine ran it on real tensors; a simulated run's summary names no engine."""
        return was_served(self.summary)

    @property
    def overload(self) -> dict[str, float] | None:
        """Served and offered rates if the server did not keep up; else None."""
        rates: dict[str, float] | None = self.summary.get(OVERLOAD)
        return rates

    @property
    def what_it_was(self) -> str:
        """Model, server, policy, scheduler and workload."""
        return "; ".join(self.parts.values())

    @property
    def parts(self) -> dict[str, str]:
        """The words of `what_it_was` by the part that they are about."""
        parts = run_words(self.summary[RUN])
        if not self.on_gpu:
            return parts
        parts.pop("costs", None)  # which a simulation of it would have
        return {**parts, "engine": "served by the engine"}


def read_run(name: str, folder: Path) -> FinishedRun:
    """The run in a folder."""
    _check_folder(folder)
    summary = _mapping(
        folder / SUMMARY, json.loads, "the run is not finished, or the folder is not a run's"
    )
    _check_keys(folder / SUMMARY, "key", keys_of_every_summary() - summary.keys())
    _check_keys(folder / SUMMARY, "key", _absent_of_engines(summary))
    config = _mapping(folder / "config.yaml", yaml.safe_load, "the folder is not a run's")
    check_unchanged(folder)
    requests, spans = _table(folder, "requests", TIMES), _table(folder, "iterations", SPANS)
    return FinishedRun(name, folder, config, summary, requests, spans)


def _check_folder(folder: Path) -> None:
    """Raise InputError for what is no folder, or one with folders of runs in it."""
    if folder.is_file():
        raise InputError(
            key=folder,
            problem="is a file",
            remedy=f"give folders of runs; {folder.parent}/*/ are all folders there",
        )
    if not folder.is_dir():
        raise InputError(
            key=folder,
            problem="no such folder",
            remedy="give folders that `testbed run` has written",
        )
    if not (folder / SUMMARY).is_file() and next(folder.glob(f"*/{SUMMARY}"), None):
        raise InputError(
            key=folder,
            problem="has several runs in it",
            remedy=f"give {folder}/*/, or some of them",
        )


def _read(path: Path, load: Callable[[Path], Any]) -> Any:
    try:
        return load(path)
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(
            key=path, problem=f"cannot be read: {' '.join(str(error).split())}"
        ) from None


def _mapping(path: Path, load: Callable[[str], Any], otherwise: str) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(key=path.parent, problem=f"has no {path.name}; {otherwise}")
    value = _read(path, lambda path: load(path.read_text(encoding="utf-8")))
    if not isinstance(value, dict):
        raise InputError(key=path, problem=f"contains no names and values; {otherwise}")
    return value


def _table(folder: Path, name: str, needed: Collection[str]) -> pd.DataFrame | None:
    """A table of the run, plain or compressed; None if it was not written.

    Raises InputError if a needed column is missing.
    """
    path = plain_or_packed(folder / f"{name}.csv")
    if path is None:
        return None
    table: pd.DataFrame = _read(path, pd.read_csv)
    _check_keys(path, "column", set(needed).difference(table))
    return table


def _absent_of_engines(summary: Mapping[str, Any]) -> set[str]:
    """The keys for the slots of a fleet's pools that another version did not write."""
    engines = summary.get(ENGINES, {}).items()
    return {f"{ENGINES}.{number}.{SLOTS}" for number, each in engines if SLOTS not in each}


def _check_keys(path: Path, what: str, absent: Collection[str]) -> None:
    """Raise InputError for a file that lacks what every run writes."""
    if absent:
        problem = f"has no {what} {min(absent)}; another version wrote it"
        raise InputError(key=path, problem=problem, remedy="run it again")
