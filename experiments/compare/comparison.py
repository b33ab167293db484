"""Runs side by side: what differs in their configs, their numbers with errors against the first, and remarks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from experiments.compare.finished_run import WHOLE, FinishedRun
from experiments.compare.quantities import Quantity, quantities
from testbed.core.errors import InputError

IDENTITY = ["arrival_s", "prompt_len", "output_len"]
ABSENT = "-"


@dataclass(frozen=True)
class Compared:
    """One number of every run; errors against the first, in points for shares and else in percent."""

    group: str
    name: str
    unit: str
    is_share: bool
    values: tuple[float | None, ...]

    @property
    def errors(self) -> tuple[float | None, ...]:
        """Of every run but the first. None: no number to compare with; of a count of 0, only 0 has an error, of 0."""
        return tuple(self._error(value) for value in self.values[1:])

    def _error(self, value: float | None) -> float | None:
        first = self.values[0]
        if value is None or first is None:
            return None
        if self.is_share:
            return value - first
        if first == 0:
            return 0.0 if value == 0 else None
        return 100 * (value / first - 1)


@dataclass(frozen=True)
class Comparison:
    """Everything but the cost terms. differences: a row a config key, a column a run."""

    runs: Sequence[FinishedRun]
    differences: pd.DataFrame
    numbers: Sequence[Compared]
    remarks: Sequence[str]


def compare(runs: Sequence[FinishedRun]) -> Comparison:
    """Compare at least two runs."""
    if len(runs) < 2:
        raise InputError(f"one run alone has nothing to be compared with; give a second folder after {runs[0].folder}")
    columns = zip(*map(quantities, runs), strict=True)
    numbers = [number for column in columns if (number := _compared(column)) is not None]
    return Comparison(runs, differences(runs), numbers, list(_remarks(runs)))


def differences(runs: Sequence[FinishedRun]) -> pd.DataFrame:
    """Config keys whose values are not the same in all runs, in the order of the configs."""
    flat = [dict(_flat(run.config)) for run in runs]
    keys = dict.fromkeys(key for one in flat for key in one)
    different = [key for key in keys if len({one.get(key) for one in flat}) > 1]
    rows = {key: [one.get(key, ABSENT) for one in flat] for key in different}
    return pd.DataFrame.from_dict(rows, orient="index", columns=[run.name for run in runs])


def tidy(comparison: Comparison) -> pd.DataFrame:
    """One row a number and run: group, quantity, unit, run, value, error, error_unit."""
    first, *others = (run.name for run in comparison.runs)
    rows: list[dict[str, Any]] = []
    for one in comparison.numbers:
        base = {"group": one.group, "quantity": one.name, "unit": one.unit}
        rows.append({**base, "run": first, "value": one.values[0]})
        unit = "points" if one.is_share else "%"
        for name, value, error in zip(others, one.values[1:], one.errors, strict=True):
            rows.append({**base, "run": name, "value": value, "error": error, "error_unit": unit})
    return pd.DataFrame(rows, columns=["group", "quantity", "unit", "run", "value", "error", "error_unit"])


def _compared(column: tuple[Quantity, ...]) -> Compared | None:
    """One number of all runs; nothing where no run has it."""
    values = tuple(one.value for one in column)
    first = column[0]
    return None if set(values) == {None} else Compared(first.group, first.name, first.unit, first.is_share, values)


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names and values as text."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, "null" if value is None else str(value)


def _remarks(runs: Sequence[FinishedRun]) -> Iterator[str]:
    """What a reader should know before the numbers."""
    for run in runs:
        if run.requests is None or run.spans is None:
            absent = "requests.csv" if run.requests is None else "iterations.csv"
            yield f"{run.name} has no {absent}: {WHOLE}"
        old = [key for key in ("memory_free", "memory_saving", "counters") if key not in run.summary]
        if old:
            yield f"{run.name} was written by another version: its summary.json has no {', '.join(old)}"
        limit = run.summary.get("stopped_at_latency")
        if limit is not None:
            yield f"{run.name} was stopped as overloaded, at {limit:.3g} s/token; its numbers are of the part before"
    tables = [run.requests for run in runs if run.requests is not None and not run.requests.empty]
    if len(tables) > 1 and not all(_same_requests(tables[0], other) for other in tables[1:]):
        yield "the runs do not serve the same requests"
    elif len(tables) == len(runs):
        yield "all runs were asked for the same requests"


def _same_requests(first: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Whether requests that both have ended, some at least, have the same arrivals (to the microsecond) and lengths.

    A run with a window may end before all its requests do.
    """
    if "request_id" not in first or "request_id" not in other:
        return False
    a, b = (table.set_index("request_id")[IDENTITY] for table in (first, other))
    both = a.index.intersection(b.index)
    return bool(len(both)) and bool(((a.loc[both] - b.loc[both]).abs() < 1e-6).to_numpy().all())
