"""Groups the runs of a folder whose curves are drawn over the same axes, and finds equal ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from testbed.experiments.look.compare.finished_run import FinishedRun
from testbed.experiments.runs.part_words import name_words
from testbed.experiments.runs.quantities import quantities


def related(runs: Sequence[FinishedRun]) -> list[list[FinishedRun]]:
    """The runs in groups of one model and one trace, in order of their first runs.

    A trace is the same if its class and its words are, such as a file's path: numbers of it, as
    lengths and seeds, are what a sweep changes.
    """
    groups = dict[Any, list[FinishedRun]]()
    for run in runs:
        model = _words(run.config.get("model"))
        groups.setdefault((model, _words(run.config.get("trace"))), []).append(run)
    return list(groups.values())


def words_of(run: FinishedRun) -> str:
    """The model and trace, which related runs share."""
    model, trace = (dict(_words(run.config.get(part))) for part in ("model", "trace"))
    kind = name_words(trace.pop("_target_", "").rpartition(".")[2])
    return ", ".join(filter(None, (model.get("name"), " ".join((kind, *trace.values())))))


def equal(runs: Sequence[FinishedRun]) -> list[list[str]]:
    """The names of runs whose numbers are all the same, if there are several."""
    names = dict[tuple[float | None, ...], list[str]]()
    for run in runs:
        numbers = tuple(quantity.value(run.summary) for quantity in quantities())
        names.setdefault(numbers, []).append(run.name)
    return [alike for alike in names.values() if len(alike) > 1]


def _words(part: Any) -> tuple[tuple[str, str], ...]:
    """The values of a part of a config that are texts, by their keys."""
    values = part if isinstance(part, Mapping) else {"": part}
    return tuple(sorted((key, value) for key, value in values.items() if isinstance(value, str)))
