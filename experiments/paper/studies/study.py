"""The plug-in API for an experiment that becomes a figure."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import hydra.utils
import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from testbed.experiments.runs.figure_style import RC
from testbed.experiments.runs.run_store import RunStore

Row = dict[str, Any]
RowKey = tuple[str, str, str, str]  # figure, setting, system and quantity: what names a row of paper/reference.csv


class Finding(NamedTuple):
    """A number to compare with the paper, or several that must all agree with it.

    Where its numbers alone cannot say how far inside its tolerance a claim is, `margin` does, in the same units as
    `scorecard.margin`; `note` says why. grid_ends: the ratio of the last rates that the paper's own scripts ran.
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
    """One unit of parallel work: runs some points in a lab and returns rows of the figure's table."""

    label: str
    work: Callable[[RunStore], list[Row]]


@dataclass(kw_only=True)
class Study(ABC):
    """One figure's experiment. `covers` lists the figure names in paper/reference.csv that it answers.

    drawing: the function that draws its table.
    """

    name: str
    covers: Sequence[str]
    drawing: str

    @abstractmethod
    def tasks(self, num_seeds: int | None) -> list[Task]:
        """What to run; num_seeds None means the study's default."""

    def only(self, rows: Collection[RowKey]) -> "Study":
        """This study with no more work than these reference rows take, drawings aside; as it is where it is cheap."""
        return self

    @abstractmethod
    def findings(self, table: pd.DataFrame) -> list[Finding]:
        """The table's counterparts of published numbers, and related numbers."""

    def draw(self, table: Path) -> Figure:
        """The figure, from nothing but the CSV file of its table."""
        with mpl.rc_context(RC):
            figure: Figure = hydra.utils.get_method(self.drawing)(pd.read_csv(table, keep_default_na=True))
        return figure
