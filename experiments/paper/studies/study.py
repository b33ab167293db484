"""The plug-in API for an experiment that becomes a figure."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from experiments.runs.lab import Lab

Row = dict[str, Any]
RowKey = tuple[str, str, str, str]  # figure, setting, system and quantity: what names a row of paper/reference.csv


class Task(NamedTuple):
    """One unit of parallel work: runs some points in a lab and returns rows of the figure's table."""

    label: str
    work: Callable[[Lab], list[Row]]


class Finding(NamedTuple):
    """A number to hold against the paper, or several that must all agree with it.

    Where its numbers alone cannot say how far inside its tolerance a claim is, `margin` does, in the same units as
    experiments.paper.margins; `note` says why. grid_ends: the ratio of the last rates that the paper's own scripts ran.
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


class Study(ABC):
    """One figure's experiment. `covers` lists the figure names in paper/reference.csv that it answers."""

    def __init__(self, name: str, covers: Sequence[str], drawing: str) -> None:
        self.name = name
        self.covers = tuple(covers)
        self.drawing = drawing

    @abstractmethod
    def tasks(self, num_seeds: int | None) -> list[Task]:
        """What to run; num_seeds None means the study's own default."""

    def only(self, rows: Collection[RowKey]) -> "Study":
        """This study with no more work than these reference rows take, drawings aside; as it is where it is cheap."""
        return self

    @abstractmethod
    def findings(self, table: pd.DataFrame) -> list[Finding]:
        """What the table says about published numbers, and what belongs beside them."""

    def draw(self, table: Path) -> Figure:
        """The figure, from nothing but the CSV file of its table."""
        figure: Figure = import_module(self.drawing).draw(pd.read_csv(table, keep_default_na=True))
        return figure
