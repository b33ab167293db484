"""Runs compared: differences of their configs, their numbers with the change from a reference run,
and remarks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from testbed.core.errors import InputError
from testbed.experiments.compare.finished_run import WHOLE, FinishedRun
from testbed.experiments.runs.summary_table import Quantity, quantities
from testbed.metrics import in_words

IDENTITY = ["arrival_s", "prompt_len", "output_len"]
ABSENT = "-"


@dataclass(frozen=True)
class Comparison:
    """All but the cost terms. differences: a row per config key, a column per run."""

    runs: Sequence[FinishedRun]
    differences: pd.DataFrame
    numbers: Mapping[Quantity, Sequence[float | None]]
    remarks: Sequence[str]

    @property
    def references(self) -> list[int]:
        """With which run each but the first is compared, by index: the first of its kind, simulated
        or on a GPU, else the first. So the error of the model (a simulation against a GPU) and an
        effect (between simulations) are apart.
        """
        first_of = {run.on_gpu: i for i, run in reversed(list(enumerate(self.runs)))}
        return [
            first_of[run.on_gpu] if first_of[run.on_gpu] < i else 0
            for i, run in enumerate(self.runs)
            if i
        ]

    def changes(self, one: Quantity) -> list[float | None]:
        """Of all runs but the first."""
        values = self.numbers[one]
        return [
            one.change(value, values[i])
            for value, i in zip(values[1:], self.references, strict=True)
        ]

    @property
    def words(self) -> list[str]:
        """Of all runs but the first: "error" of a simulation against a GPU, else "change", and the
        reference.
        """
        runs, found = self.runs, self.references
        kinds = [
            "error" if runs[i].on_gpu != run.on_gpu else "change"
            for i, run in zip(found, runs[1:], strict=True)
        ]
        several = len(set(found)) > 1
        return [
            f"{kind} from {runs[i].name}" if several else kind
            for kind, i in zip(kinds, found, strict=True)
        ]


def compare(runs: Sequence[FinishedRun]) -> Comparison:
    """Compare at least two runs."""
    if len(runs) < 2:
        raise InputError(
            f"{runs[0].folder}: a single run cannot be compared (give a second folder after it)"
        )
    values = {one: [one.value(run.summary) for run in runs] for one in quantities()}
    numbers = {one: found for one, found in values.items() if set(found) != {None}}
    return Comparison(runs, differences(runs), numbers, list(_remarks(runs)))


def differences(runs: Sequence[FinishedRun]) -> pd.DataFrame:
    """Config keys whose values differ between runs, in the order of the configs."""
    flat = [dict(_flat(run.config)) for run in runs]
    keys = dict.fromkeys(key for one in flat for key in one)
    different = [key for key in keys if len({one.get(key) for one in flat}) > 1]
    rows = {key: [one.get(key, ABSENT) for one in flat] for key in different}
    return pd.DataFrame.from_dict(rows, orient="index", columns=[run.name for run in runs])


NUMBER_COLUMNS = (
    "group",
    "quantity",
    "unit",
    "run",
    "value",
    "change",
    "change_unit",
    "reference",
)


def tidy(comparison: Comparison) -> pd.DataFrame:
    """One row per number and run, with NUMBER_COLUMNS."""
    return pd.DataFrame(number_rows(comparison), columns=list(NUMBER_COLUMNS))


def number_rows(comparison: Comparison) -> Iterator[tuple[Any, ...]]:
    """One row per number and run, as NUMBER_COLUMNS says. The first run, from which others differ,
    has no change.
    """
    names, references = [run.name for run in comparison.runs], comparison.references
    for quantity, values in comparison.numbers.items():
        about = (quantity.group, quantity.name, quantity.unit)
        change_unit = "points" if quantity.is_share else "%"
        yield (*about, names[0], values[0], None, None, None)
        changes = comparison.changes(quantity)
        for name, value, change, i in zip(names[1:], values[1:], changes, references, strict=True):
            yield (*about, name, value, change, change_unit, names[i])


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names and values as text."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    else:
        whole = isinstance(value, float) and value.is_integer()
        yield path, "null" if value is None else f"{value:.0f}" if whole else str(value)


def _remarks(runs: Sequence[FinishedRun]) -> Iterator[str]:
    """Remarks to read before the numbers."""
    for run in runs:
        if run.requests is None or run.spans is None:
            absent = "requests.csv" if run.requests is None else "iterations.csv"
            yield f"{run.name} has no {absent}: {WHOLE}"
        old = [
            key for key in ("memory_free", "memory_saving", "counters") if key not in run.summary
        ]
        if old:
            yield (
                f"{run.name} was written by another version: its summary.json has no "
                f"{', '.join(old)}"
            )
        limit = run.summary.get("stopped_at_latency")
        if limit is not None:
            yield (
                f"{run.name} was stopped as overloaded, at {limit:.3g} s/token; its numbers are "
                f"of the part before"
            )
        elif run.overload:
            yield f"{run.name} is overloaded: {in_words(run.overload)}"
        requests = run.summary.get("requests", {})
        left = (
            requests.get("arrived", 0) - requests.get("finished", 0) - requests.get("rejected", 0)
        )
        if left:
            yield (
                f"{run.name} is unfinished: {left:,} of {requests['arrived']:,} requests had not "
                f"ended"
            )
    tables = [run.requests for run in runs if run.requests is not None and not run.requests.empty]
    if len(tables) > 1 and not all(_same_requests(tables[0], other) for other in tables[1:]):
        yield "the runs do not serve the same requests"
    elif len(tables) == len(runs):
        yield "all runs serve the same requests"


def _same_requests(first: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Whether both ended some common requests, all with equal arrivals (to the microsecond) and
    lengths. A run with a window may end before all its requests do.
    """
    if "request_id" not in first or "request_id" not in other:
        return False
    a, b = (table.set_index("request_id")[IDENTITY] for table in (first, other))
    both = a.index.intersection(b.index)
    return bool(len(both)) and bool(((a.loc[both] - b.loc[both]).abs() < 1e-6).to_numpy().all())
