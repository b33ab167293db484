"""The plug-in API for an experiment that becomes a figure."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import hydra.utils
import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure

from testbed.core.errors import InputError
from testbed.experiments.look.plots import STYLE
from testbed.experiments.runs.run_store import RunStore

Row = dict[str, Any]
RowKey = tuple[str, str, str, str]  # figure, setting, system and quantity of paper/reference.csv


class Finding(NamedTuple):
    """A number to compare with the paper, or several that must all agree with it.

    margin: how far inside its tolerance a claim is (see scorecard.margin), if the numbers alone
    do not show it; note: why. grid_ends: the ratio of the last rates in the paper's scripts.
    """

    figure: str
    setting: str
    system: str
    quantity: str
    simulated: float | str | tuple[float, ...]
    margin: float | None = None
    interval: str = ""
    note: str = ""
    grid_ends: str = ""


class Task(NamedTuple):
    """A unit of parallel work, which returns rows of the figure's table."""

    label: str
    work: Callable[[RunStore], list[Row]]


@dataclass(kw_only=True)
class Study(ABC):
    """The experiment of one figure.

    title: the figure's name in reports. covers: the figures of paper/reference.csv that it answers.
    drawing: the function that draws its table; looks: its other arguments, such as titles and
    colours. common: options of all runs.
    """

    name: str
    title: str
    covers: Sequence[str]
    drawing: str
    looks: Mapping[str, Any] = field(default_factory=dict)
    common: Sequence[str] = ()

    @abstractmethod
    def tasks(self, num_seeds: int | None) -> list[Task]:
        """The tasks of the study; num_seeds: None for the study's default."""

    def each(
        self, label: str, work: Callable[..., list[Row]], /, **axes: Iterable[Any]
    ) -> list[Task]:
        """A task for each combination of the axes' values. A combination fills the label, and its
        values are the arguments of `work`, both by name.
        """
        points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
        return [Task(label.format(study=self, **point), partial(work, **point)) for point in points]

    @property
    def replays(self) -> Collection[str]:
        """The public traces of which the study needs one or more, by the names of --lengths."""
        return ()

    def given_files(self, store: RunStore) -> dict[str, str]:
        """The files that the user gave for the study's public traces, by trace.

        Raises:
            InputError: the user gave none.
        """
        files = {name: path for name, path in store.lengths if name in self.replays}
        if self.replays and not files:
            lengths = " or ".join(f"--lengths {name}=FILE" for name in self.replays)
            raise InputError(
                key=self.name,
                problem="replays public traces, which are not part of the testbed",
                remedy=f"give {lengths}; `testbed list trace` says which",
            )
        return files

    def only(self, rows: Collection[RowKey]) -> "Study":
        """The part of this study that these reference rows need; a cheap study is not reduced."""
        return self

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        """The table's values to compare with published numbers, and related values."""
        return []

    def draw(self, table: Path) -> Figure:
        """The figure, drawn from the CSV file of its table alone."""
        with style.context(STYLE):
            figure: Figure = hydra.utils.get_method(self.drawing)(pd.read_csv(table), **self.looks)
        return figure


def reported(
    figure: str, table: pd.DataFrame, place: str, system: str, columns: Mapping[str, str]
) -> list[Finding]:
    """A finding for each row of the table and each of these columns that has a value there.

    columns: the quantity of each column. place, system: format strings that a row fills.
    """
    findings = []
    for row in table.to_dict("records"):
        names = place.format(**row), system.format(**row)
        for column, quantity in columns.items():
            if not pd.isna(row[column]):
                findings.append(Finding(figure, *names, quantity, row[column]))
    return findings


def kept_rows(name: str) -> pd.DataFrame:
    """A table of kernels/results."""
    with (resources.files("testbed.kernels") / "results" / name).open(encoding="utf-8") as file:
        return pd.read_csv(file, comment="#")
