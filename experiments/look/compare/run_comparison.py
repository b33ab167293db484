"""The comparison of runs: differing config keys, numbers with changes, and remarks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import pandas as pd

from testbed.core.errors import InputError
from testbed.experiments.look.compare.compared_number import ComparedNumber
from testbed.experiments.look.compare.differences import differences
from testbed.experiments.look.compare.finished_run import WHOLE, FinishedRun
from testbed.experiments.runs.equal_caches import remark_on_caches
from testbed.experiments.runs.quantities import Quantity, quantities
from testbed.experiments.runs.run_words import (
    future_read_by,
    remark_on_planning,
    remark_on_pools,
    remark_on_ways,
)
from testbed.run.metrics import in_words

IDENTITY = ["arrival_s", "prompt_len", "output_len"]


@dataclass(frozen=True)
class Comparison:
    """The comparison of some runs.

    differences: a row per config key, a column per run. numbers: a value per run.
    """

    runs: Sequence[FinishedRun]
    differences: pd.DataFrame
    numbers: Mapping[Quantity, Sequence[float | None]]
    remarks: Sequence[str]

    @property
    def references(self) -> list[int]:
        """The index of the run with which each run after the first is compared.

        It is the first run of the same kind (simulated or on a GPU) if that comes earlier, else the
        first run. So the model's error and the effect of a change are not mixed.
        """
        first_of = {run.on_gpu: i for i, run in reversed(list(enumerate(self.runs)))}
        return [
            first_of[run.on_gpu] if first_of[run.on_gpu] < i else 0
            for i, run in enumerate(self.runs)
            if i
        ]

    def changes(self, quantity: Quantity) -> list[float | None]:
        """The change of each run after the first from its reference."""
        values = self.numbers[quantity]
        return [
            quantity.change(value, values[i])
            for value, i in zip(values[1:], self.references, strict=True)
        ]

    @property
    def words(self) -> list[str]:
        """The name of each run's change: "error" between simulation and GPU, else "change".

        If there are several references, the name includes the reference.
        """
        names_reference = len(set(self.references)) > 1
        words = []
        for i, run in zip(self.references, self.runs[1:], strict=True):
            reference = self.runs[i]
            kind = "error" if reference.on_gpu != run.on_gpu else "change"
            words.append(f"{kind} from {reference.name}" if names_reference else kind)
        return words


def compare(runs: Sequence[FinishedRun]) -> Comparison:
    """Compare at least two runs."""
    if len(runs) < 2:
        raise InputError(
            key=runs[0].folder or runs[0].name,
            problem="a single run cannot be compared",
            remedy="give a second folder after it",
        )
    numbers = {}
    for quantity in quantities():
        values = [quantity.value(run.summary) for run in runs]
        if set(values) != {None}:
            numbers[quantity] = values
    return Comparison(runs, differences(runs), numbers, list(_remarks(runs)))


def tidy(comparison: Comparison) -> pd.DataFrame:
    """One row per number and run."""
    names = [column.name for column in fields(ComparedNumber)]
    return pd.DataFrame(number_rows(comparison), columns=names)


def number_rows(comparison: Comparison) -> Iterator[ComparedNumber]:
    """Each number of each run; the first run has no change."""
    names, references = [run.name for run in comparison.runs], comparison.references
    for quantity, values in comparison.numbers.items():
        about = (quantity.group, quantity.name, quantity.unit)
        change_unit = "points" if quantity.is_share else "%"
        yield ComparedNumber(*about, names[0], values[0])
        changes = comparison.changes(quantity)
        for name, value, change, i in zip(names[1:], values[1:], changes, references, strict=True):
            yield ComparedNumber(*about, name, value, change, change_unit, names[i])


def _remarks(runs: Sequence[FinishedRun]) -> Iterator[str]:
    """Remarks to read before the numbers."""
    for run in runs:
        yield from _remarks_on(run)
    simulated = {run.name: run.summary for run in runs if not run.on_gpu}
    yield from remark_on_ways(simulated)
    yield from remark_on_pools(simulated)
    yield from remark_on_planning(simulated)
    yield from remark_on_caches({name: [summary] for name, summary in simulated.items()})
    tables = [run.requests for run in runs if run.requests is not None and not run.requests.empty]
    if len(tables) > 1 and not all(_same_requests(tables[0], other) for other in tables[1:]):
        yield "the runs do not serve the same requests"
    elif len(tables) == len(runs):
        yield "all runs serve the same requests"


def _remarks_on(run: FinishedRun) -> Iterator[str]:
    """Remarks on a run that reads the future, without tables, overloaded or unfinished."""
    if future := future_read_by(run.summary):
        yield f"{run.name} reads the future, as no real server can: {future}"
    if run.requests is None or run.spans is None:
        absent = "requests.csv" if run.requests is None else "iterations.csv"
        yield f"{run.name} has no {absent}: {WHOLE}"
    limit = run.summary["stopped_at_latency"]
    if limit is not None:
        yield (
            f"{run.name} was stopped as overloaded, at {limit:.3g} s/token; its numbers are of "
            "the part before"
        )
    elif run.overload:
        yield f"{run.name} is overloaded: {in_words(run.overload)}"
    requests = run.summary["requests"]
    unfinished = requests["arrived"] - requests["finished"] - requests["rejected"]
    if unfinished:
        yield (
            f"{run.name} is unfinished: {unfinished:,} of {requests['arrived']:,} requests had "
            "not ended"
        )


def _same_requests(first: pd.DataFrame, other: pd.DataFrame) -> bool:
    """True if the requests in both tables have equal arrivals (to the microsecond) and lengths.

    False if no request is in both. A run with a window may end before all its requests do.
    """
    a, b = (table.set_index("request_id")[IDENTITY] for table in (first, other))
    both = a.index.intersection(b.index)
    return bool(len(both)) and bool(((a.loc[both] - b.loc[both]).abs() < 1e-6).to_numpy().all())
