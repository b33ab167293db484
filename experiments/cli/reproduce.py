"""`testbed reproduce` and `plot`: the experiments of the paper, their figures and the scorecard."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from testbed.core.errors import InputError
from testbed.core.spelling import did_you_mean
from testbed.experiments.cli.parameters import AtLeastOne, Picture
from testbed.experiments.runs.choice_names import FILE_READERS, files_of, length_file

if TYPE_CHECKING:
    import pandas as pd

    from testbed.experiments.paper.studies.study import Study
    from testbed.experiments.runs.run_store import RunStore

ORDER = (
    "table1",
    "fig1",
    "fig2",
    "fig11",
    "fig12",
    "fig13",
    "fig14",
    "fig15",
    "fig16",
    "fig17",
    "fig18",
    "fig19",
)
BEYOND = (
    "mooncake",
    "agent_sessions",
    "tiers",
    "store_rules",
    "time_to_live",
    "global_cache",
    "routers",
    "groups",
    "speculation",
)
SAME_ANYWHERE = (
    "table1",
    "fig11",
    "fig18a",
    *BEYOND,
)  # figures without costs, or of a GPU of their own
ALTERNATIVES = "alternatives"  # the scorecard's sensitivity; not part of `all`
SIZE = re.compile(r"(\d+(?:\.\d+)?)x(\d+(?:\.\d+)?)")
PART = re.compile(r"(fig\d+)[a-z]")  # of a figure of several panels
SMALLEST, LARGEST = 0.5, 50  # inches of a figure
RESULTS = Path("results")

Figures = Annotated[
    str,
    Parameter(
        name="FIGURE",
        required=True,
        help=f"{', '.join((*ORDER, *BEYOND))}, {ALTERNATIVES}, all",
    ),
]
LengthFiles = Annotated[
    list[str] | None,
    Parameter(
        metavar="[NAME=]FILE",
        help="replay a length file in place of an embedded model "
        f"({', '.join(FILE_READERS)}; without NAME: sharegpt)",
    ),
]
ResultsFolder = Annotated[Path, Parameter(metavar="DIR", help="folder to write")]
Jobs = Annotated[AtLeastOne | None, Parameter(help="processes (default: all cores)")]
Seeds = Annotated[
    AtLeastOne | None, Parameter(help="seeds 0 to N-1 (default: each figure's seeds)")
]
OtherProfile = Annotated[
    str | None,
    Parameter(
        metavar="FILE",
        help="of testbed gpu calibrate or testbed import profile: also the figures on its "
        "GPU, in a folder of its name, with columns in the scorecard",
    ),
]
PlottedFigure = Annotated[str, Parameter(name="FIGURE", help=", ".join((*ORDER, *BEYOND)))]
TableFolder = Annotated[
    Path, Parameter(name="FOLDER", help="folder of testbed reproduce, with FIGURE.csv")
]
PlotOut = Annotated[
    Picture | None,
    Parameter(help="default: FIGURE.pdf; the suffix sets the format (.pdf, .png, .svg)"),
]
PlotSize = Annotated[
    str | None,
    Parameter(metavar="WxH", help="inches, such as 7x3.5 (default: the figure's size)"),
]


def available() -> list[str]:
    """Figures that have a config, in the paper's order."""
    there = files_of("figure")
    return [name for name in (*ORDER, *BEYOND) if name in there]


def reproduce(
    *figures: Figures,
    lengths: LengthFiles = None,
    out: ResultsFolder = RESULTS,
    jobs: Jobs = None,
    seeds: Seeds = None,
    profile: OtherProfile = None,
) -> None:
    """Reproduce figures and tables of the paper.

    Runs their simulations, writes the tables, draws the figures from the tables, and scores the
    results against the published numbers.
    """
    from testbed.experiments.cli.output import show
    from testbed.experiments.paper.futures import futures_of, remarks_on
    from testbed.experiments.paper.reproduction import load, run_studies, score
    from testbed.experiments.paper.scorecard_words import card_table, remarks
    from testbed.experiments.runs.run_store import RunStore, gpu_of_profile

    names = chosen(figures)
    show(*whole_figures(figures))
    studies = [load(name) for name in names if name != ALTERNATIVES]
    store = RunStore(out / "runs", tuple(length_file(text) for text in lengths or ()))
    other_gpu = gpu_of_profile(profile).name if profile else ""
    out.mkdir(parents=True, exist_ok=True)
    jobs = jobs or os.cpu_count() or 1
    tables = run_studies(studies, store, jobs, seeds, out)
    if ALTERNATIVES in names:
        _run_alternatives(store, jobs, out)
    if not studies:
        return
    replayed = tuple(name for name, _ in store.lengths)
    card = score(studies, tables, replayed, out)
    if profile:
        moved = [study for study in studies if study.name not in SAME_ANYWHERE]
        other_store = replace(store, profile=profile)
        card = _add_other_gpu(card, moved, other_store, jobs, seeds, out / other_gpu)
    future = remarks_on(futures_of(tables))
    show(*future, card_table(card), *remarks(card, replayed, figures))
    show(f"figures, tables and scorecard.csv: {out}")


def _add_other_gpu(
    card: "pd.DataFrame",
    studies: "Sequence[Study]",
    store: "RunStore",
    jobs: int,
    seeds: int | None,
    folder: Path,
) -> "pd.DataFrame":
    """Run the studies on the GPU of the store's profile; add its columns to the scorecard.

    The folder has the GPU's name; the scorecard of both GPUs is written next to it.
    """
    from testbed.experiments.cli.output import show
    from testbed.experiments.paper.reproduction import run_studies, score
    from testbed.experiments.paper.scorecard import next_to_other
    from testbed.experiments.runs.whole_files import write_text

    folder.mkdir(exist_ok=True)
    tables = run_studies(studies, store, jobs, seeds, folder)
    other_card = score(studies, tables, tuple(name for name, _ in store.lengths), folder)
    other_card = other_card[~other_card["figure"].isin(SAME_ANYWHERE)]
    both = next_to_other(card, other_card, folder.name)
    write_text(folder.with_name("scorecard.csv"), both.to_csv(index=False))
    show(f"the same figures on {folder.name}, with the paper's pools: {folder}")
    return both


def _run_alternatives(store: "RunStore", jobs: int, out: Path) -> None:
    """Score the paper's figures with the alternatives of each choice."""
    from testbed.experiments.cli.output import show
    from testbed.experiments.paper.reproduction import perform, run_alternatives
    from testbed.experiments.runs.whole_files import write_text

    paper = [name for name in available() if name not in BEYOND]
    table = run_alternatives(paper, partial(perform, store=store, jobs=jobs))
    write_text(out / "alternatives.csv", table.to_csv(index=False))
    show(table.to_string(index=False))


def chosen(figures: Sequence[str]) -> list[str]:
    """The requested figures, each once, in the paper's order; a part such as fig12a is its whole
    figure.
    """
    choices = [*available(), ALTERNATIVES]
    figures = [name if name in choices else _whole(name) for name in figures]
    for name in figures:
        if name not in (*choices, "all"):
            raise _unknown_figure(name, [*choices, "all"])
    return [name for name in choices if name in figures or ("all" in figures and name in ORDER)]


def whole_figures(figures: Sequence[str]) -> list[str]:
    """A line for each panel that was asked for: it is run with its whole figure."""
    return [
        f"{name}: a panel of {_whole(name)}, which is run as a whole"
        for name in figures
        if name not in available() and _whole(name) != name
    ]


def _whole(name: str) -> str:
    """The figure of a panel; another name as it is."""
    panel = PART.fullmatch(name)
    return panel[1] if panel and panel[1] in available() else name


def _unknown_figure(name: str, choices: Sequence[str]) -> InputError:
    near = did_you_mean(name, choices)
    return InputError(
        key=f"figure {name!r}",
        problem=f"is unknown{near}",
        remedy=f"choose from {', '.join(choices)}",
    )


def plot(
    figure: PlottedFigure,
    folder: TableFolder,
    /,
    *,
    out: PlotOut = None,
    size: PlotSize = None,
) -> None:
    """Draw a figure of the paper from its stored table."""
    if figure not in available():
        raise _unknown_figure(figure, available())
    inches = _inches(size) if size else None
    table = folder / f"{figure}.csv"
    if not table.is_file():
        raise InputError(
            key=table,
            problem="no such file",
            remedy=f"testbed reproduce {figure} --out {folder} writes it",
        )
    from testbed.experiments.look.plots import save
    from testbed.experiments.paper.reproduction import load

    out = out or Path(f"{figure}.pdf")
    drawn = load(figure).draw(table)
    if inches:
        drawn.set_size_inches(*inches)
    save(drawn, out)
    print(f"figure: {out}")


def _inches(size: str) -> tuple[float, float]:
    """Width and height of WxH."""
    match = SIZE.fullmatch(size)
    inches = (float(match[1]), float(match[2])) if match else (0.0, 0.0)
    if not all(SMALLEST <= length <= LARGEST for length in inches):
        raise InputError(
            key="--size",
            value=size,
            problem=f"no width and height of {SMALLEST} to {LARGEST} inches (such as 7x3.5)",
        )
    return inches
