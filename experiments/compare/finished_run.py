"""A finished run read from its folder, and its cost terms against a run on a GPU."""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml

from testbed.config import ServerConfig
from testbed.core.config_model import read
from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.core.specs import ModelSpec
from testbed.cost.model import ALWAYS, CostModel, Work, read_work
from testbed.description import RUN, was_served
from testbed.experiments.runs.csv_tables import read_csv_table
from testbed.experiments.runs.progress import one_line, short_names
from testbed.experiments.runs.run_folder import check_unchanged
from testbed.experiments.runs.summary_table import described
from testbed.machine import make_cost
from testbed.parts import Part, locate
from testbed.run import OVERLOAD
from testbed.traces.files import plain_or_packed
from testbed.trusted import check_classes

TIMES = (
    "arrival_s",
    "first_token_s",
    "finish_s",
    "ttft_s",
    "tpot_s",
    "e2e_s",
    "prompt_len",
    "output_len",
)
SPANS = ("start_s", "duration_s", "iterations", "running", "live", "reserved", "internal")
WHOLE = "run it again with outputs=full for curves"
SOFTWARE = "software"
MEASURED = ("duration_s", "gpu_s")


@dataclass(frozen=True)
class FinishedRun:
    """A finished run.

    requests: a row per request; spans: a row per span of identical iterations; None if the run
    wrote no such table. folder: None for a result in a notebook. trusts_plug_ins: whether foreign
    classes that the folder's config names may be loaded.
    """

    name: str
    folder: Path | None
    config: dict[str, Any]
    summary: dict[str, Any]
    requests: pd.DataFrame | None
    spans: pd.DataFrame | None
    trusts_plug_ins: bool = False

    @property
    def on_gpu(self) -> bool:
        """Whether an engine ran it on real tensors; a simulated run's summary names no engine."""
        return was_served(self.summary)

    @property
    def overload(self) -> dict[str, float] | None:
        """Served and offered rates if the server did not keep up; else None."""
        found: dict[str, float] | None = self.summary.get(OVERLOAD)
        return found

    @property
    def config_text(self) -> str:
        """The text of its config file."""
        if self.folder is None:
            return str(yaml.safe_dump(self.config, sort_keys=False))
        return (self.folder / "config.yaml").read_text(encoding="utf-8")

    @property
    def what_it_was(self) -> str:
        """Model, server, policy, scheduler and workload; empty for another version's summary."""
        return "; ".join(self.parts.values())

    @property
    def parts(self) -> dict[str, str]:
        """The words of `what_it_was` by the part that they are about."""
        parts = described(self.summary.get(RUN, {}))
        if not self.on_gpu:
            return parts
        parts.pop("costs", None)  # which a simulation of it would have
        return {**parts, "engine": "served by the engine"}


def read_runs(arguments: Sequence[str], *, trusts_plug_ins: bool = False) -> list[FinishedRun]:
    """The runs of the arguments [NAME=]FOLDER.

    The default name is the folder's, with its parents if two folders have the same name.
    """
    split = ((text, *text.partition("=")) for text in arguments)
    named = [
        (a, Path(b)) if sign and not Path(text).is_dir() else ("", Path(text))
        for text, a, sign, b in split
    ]
    tails = short_names([folder for _, folder in named])
    names = [name or tail for (name, _), tail in zip(named, tails, strict=True)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(
            f"{twice[0]}: is the name of two runs (name them: a={named[0][1]} b={named[1][1]})"
        )
    runs = [read_run(name, folder) for name, (_, folder) in zip(names, named, strict=True)]
    return [replace(run, trusts_plug_ins=trusts_plug_ins) for run in runs]


def read_run(name: str, folder: Path) -> FinishedRun:
    """The run in a folder."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder (give folders that `testbed run` has written)")
    summary = _mapping(
        folder / "summary.json", json.loads, "the run is not finished, or the folder is not a run's"
    )
    config = _mapping(folder / "config.yaml", yaml.safe_load, "the folder is not a run's")
    check_unchanged(folder)
    requests, spans = _table(folder, "requests", TIMES), _table(folder, "iterations", SPANS)
    return FinishedRun(name, folder, config, summary, requests, spans)


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
    """A table of the run, plain or compressed; None if it was not written.

    Raises InputError if a needed column is missing.
    """
    path = plain_or_packed(folder / f"{name}.csv")
    if path is None:
        return None
    table: pd.DataFrame = _read(path, read_csv_table)
    absent = [name for name in needed if name not in table]
    if absent:
        raise InputError(
            f"{path}: has no column {absent[0]}; another version wrote it (run it again)"
        )
    return table


class Term(NamedTuple):
    """A cost term: the seconds of one kind of iterations, measured and by the cost model.

    share_points: the error in percent of the GPU run's busy time.
    """

    term: str
    iterations: int
    measured_s: float
    predicted_s: float
    share_points: float

    @property
    def error_s(self) -> float:
        """Predicted minus measured seconds: above 0, the simulator is too slow."""
        return self.predicted_s - self.measured_s

    @property
    def error_percent(self) -> float | None:
        """The error in percent of the measured time."""
        return 100 * self.error_s / self.measured_s if self.measured_s else None


def terms(simulated: FinishedRun, real: FinishedRun) -> list[Term]:
    """The cost terms, the largest error first.

    They are the kernels by kind of iteration, and software, the time between kernels. An engine on
    a CPU measures no GPU time, so its iterations are compared as a whole.
    """
    table = predicted(simulated, real)
    busy_s = float(table["duration_s"].sum())
    if table["gpu_s"].any():
        rows = [
            (f"kernels: {kind}", part["gpu_s"], part["kernels_s"])
            for kind, part in table.groupby("kind")
        ]
        rows.append(
            (SOFTWARE, table["duration_s"] - table["gpu_s"], table["cost_s"] - table["kernels_s"])
        )
    else:
        rows = [
            (f"all of: {kind}", part["duration_s"], part["cost_s"])
            for kind, part in table.groupby("kind")
        ]
    all_terms = []
    for name, measured, by_cost in rows:
        measured_s, predicted_s = float(measured.sum()), float(by_cost.sum())
        share = 100 * (predicted_s - measured_s) / busy_s if busy_s else 0.0
        all_terms.append(Term(name, len(measured), measured_s, predicted_s, share))
    return sorted(all_terms, key=lambda term: -abs(term.error_s))


def blame(runs: Sequence[FinishedRun]) -> tuple[dict[tuple[str, str], list[Term]], list[str]]:
    """The terms of each simulated run against each run on a GPU; remarks on pairs without terms."""
    simulated = [run for run in runs if not run.on_gpu]
    real = [run for run in runs if run.on_gpu]
    terms_of, remarks = {}, []
    for ours, theirs in product(simulated, real):
        try:
            terms_of[ours.name, theirs.name] = terms(ours, theirs)
        except InputError as error:
            remarks.append(f"no cost terms of {ours.name} against {theirs.name}: {one_line(error)}")
    return terms_of, remarks


def predicted(simulated: FinishedRun, real: FinishedRun) -> pd.DataFrame:
    """The GPU run's iterations with their kind, the predicted cost (s) and that of kernels (s)."""
    table = real.spans
    if table is None:
        raise InputError(f"{real.folder}: has no iterations.csv, so no cost term can be compared")
    absent = [name for name in (*MEASURED, *ALWAYS) if name not in table]
    if absent:
        raise InputError(
            f"{real.folder}/iterations.csv: has no column {absent[0]}, so no cost term can be "
            f"compared"
        )
    works = [read_work(row) for row in table.to_dict("records")]
    whole, kernels = cost_models(simulated)
    predictions = {
        "cost_s": [whole.iteration(work) / PS for work in works],
        "kernels_s": [kernels.iteration(work) / PS for work in works],
    }
    return table[list(MEASURED)].assign(kind=[kind_of(work) for work in works], **predictions)


def kind_of(work: Work) -> str:
    """The kind of an iteration as text."""
    computed, moved = list[str](), list[str]()
    if work.decode_seqs:
        computed.append("decodes")
    if work.prefill:
        computed.append("prompts")
    if work.moves:
        moved.append("swaps")
    if work.copies:
        moved.append("copies")
    return ", ".join([" and ".join(computed or ["nothing"]), *moved])


def cost_models(run: FinishedRun) -> tuple[CostModel, CostModel]:
    """The cost model of a run, and the same one with all software times set to 0."""
    config = run.config
    if run.folder is not None and not run.trusts_plug_ins:
        check_classes(config, run.folder / "config.yaml")
    cost = Part.from_values(config["cost"], "cost")
    machine = (
        read(ModelSpec, config["model"], "model"),
        read(ServerConfig, config["server"], "server"),
    )
    return make_cost(cost, *machine), make_cost(without_software(cost), *machine)


def without_software(cost: Part) -> Part:
    """The cost model with all parameters called overhead... set to 0."""
    nested = {
        key: without_software(value)
        for key, value in cost.parameters.items()
        if isinstance(value, Part)
    }
    overheads = dict[str, float]()
    target = locate(cost.target, "cost")
    if is_dataclass(target):
        names = [field.name for field in fields(target)]
        overheads = {name: 0.0 for name in names if name.startswith("overhead")}
    return replace(cost, parameters={**cost.parameters, **nested, **overheads})
