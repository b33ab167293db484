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
from testbed.experiments.cli.completed_words import figures as figure_names
from testbed.experiments.cli.parameters import AtLeastOne, Picture
from testbed.experiments.runs.choice_names import FILE_READERS, files_of, length_file
from testbed.schema import did_you_mean

if TYPE_CHECKING:
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
    "transfer_sizes",
    "groups",
    "hit_units",
)
SAME_ANYWHERE = (
    "table1",
    "fig11",
    "fig18a",
    *BEYOND,
)  # figures without costs, or of a GPU of their own
ALTERNATIVES = "alternatives"  # the scorecard's sensitivity; not part of `all`
SIZE = re.compile(r"(\d+(?:\.\d+)?)x(\d+(?:\.\d+)?)")
SMALLEST, LARGEST = 0.5, 50  # inches of a figure


def available() -> list[str]:
    """Figures that have a config, in the paper's order."""
    there = files_of("figure")
    return [name for name in (*ORDER, *BEYOND) if name in there]


def reproduce(
    *figures: Annotated[
        str,
        Parameter(
            name="FIGURE",
            required=True,
            completer=figure_names,
            help=f"{', '.join((*ORDER, *BEYOND))}, {ALTERNATIVES}, all",
        ),
    ],
    lengths: Annotated[
        list[str] | None,
        Parameter(
            metavar="[NAME=]FILE",
            help="replay a length file in place of an embedded model "
            f"({', '.join(FILE_READERS)}; without NAME: sharegpt)",
        ),
    ] = None,
    out: Annotated[Path, Parameter(metavar="DIR", help="folder to write")] = Path("results"),
    jobs: Annotated[AtLeastOne | None, Parameter(help="processes (default: all cores)")] = None,
    seeds: Annotated[
        AtLeastOne | None, Parameter(help="seeds 0 to N-1 (default: each figure's seeds)")
    ] = None,
    profile: Annotated[
        str | None,
        Parameter(
            metavar="FILE",
            help="of testbed gpu calibrate or testbed import profile: also the figures on its "
            "GPU, in a folder of its name, with columns in the scorecard",
        ),
    ] = None,
) -> None:
    """Reproduce figures and tables of the paper.

    Runs their simulations, writes the tables, draws the figures from the tables, and scores the
    results against the published numbers.
    """
    from testbed.experiments.cli.output import show
    from testbed.experiments.paper.reproduction import load, run_studies, score
    from testbed.experiments.paper.scorecard import card_table, next_to_other, remarks
    from testbed.experiments.runs.csv_tables import csv_text
    from testbed.experiments.runs.run_store import RunStore, gpu_of_profile
    from testbed.experiments.runs.whole_files import write_text

    names = chosen(figures)
    studies = [load(name) for name in names if name != ALTERNATIVES]
    store = RunStore(out / "runs", tuple(length_file(text) for text in lengths or ()))
    other = gpu_of_profile(profile).name if profile else ""
    out.mkdir(parents=True, exist_ok=True)
    jobs = jobs or os.cpu_count() or 1
    tables = run_studies(studies, store, jobs, seeds, out)
    if ALTERNATIVES in names:
        _run_alternatives(store, jobs, out)
    if not studies:
        return
    card = score(studies, tables, out)
    if profile:
        folder = out / other
        folder.mkdir(exist_ok=True)
        moved = [study for study in studies if study.name not in SAME_ANYWHERE]
        theirs = run_studies(moved, replace(store, profile=profile), jobs, seeds, folder)
        there = score(moved, theirs, folder)
        card = next_to_other(card, there[~there["figure"].isin(SAME_ANYWHERE)], other)
        write_text(out / "scorecard.csv", csv_text(card))
        show(f"the same figures on {other}, with the paper's pools: {folder}")
    show(card_table(card), *remarks(card, dict(store.lengths), figures))
    show(f"figures, tables and scorecard.csv: {out}")


def _run_alternatives(store: "RunStore", jobs: int, out: Path) -> None:
    """Score the paper's figures with the alternatives of each choice."""
    from testbed.experiments.cli.output import show
    from testbed.experiments.paper.reproduction import perform, run_alternatives
    from testbed.experiments.runs.csv_tables import csv_text
    from testbed.experiments.runs.whole_files import write_text

    paper = [name for name in available() if name not in BEYOND]
    table = run_alternatives(paper, partial(perform, store=store, jobs=jobs))
    write_text(out / "alternatives.csv", csv_text(table))
    show(table.to_string(index=False))


def chosen(figures: Sequence[str]) -> list[str]:
    """The requested figures, each once, in the paper's order."""
    known = [*available(), ALTERNATIVES]
    for name in figures:
        if name not in (*known, "all"):
            raise _unknown_figure(name, [*known, "all"])
    return [name for name in known if name in figures or ("all" in figures and name in ORDER)]


def _unknown_figure(name: str, known: Sequence[str]) -> InputError:
    near = did_you_mean(name, known)
    return InputError(f"figure {name!r}: is unknown{near} (choose from {', '.join(known)})")


def plot(
    figure: Annotated[
        str,
        Parameter(name="FIGURE", completer=figure_names, help=", ".join((*ORDER, *BEYOND))),
    ],
    folder: Annotated[
        Path, Parameter(name="FOLDER", help="folder of testbed reproduce, with FIGURE.csv")
    ],
    /,
    *,
    out: Annotated[
        Picture | None,
        Parameter(help="default: FIGURE.pdf; the suffix sets the format (.pdf, .png, .svg)"),
    ] = None,
    size: Annotated[
        str | None,
        Parameter(metavar="WxH", help="inches, such as 7x3.5 (default: the figure's size)"),
    ] = None,
) -> None:
    """Draw a figure of the paper from its stored table."""
    if figure not in available():
        raise _unknown_figure(figure, available())
    inches = _inches(size) if size else None
    table = folder / f"{figure}.csv"
    if not table.is_file():
        raise InputError(
            f"{table}: no such file (testbed reproduce {figure} --out {folder} writes it)"
        )
    from testbed.experiments.paper.reproduction import load
    from testbed.experiments.runs.plots import save

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
            f"--size {size}: no width and height of {SMALLEST} to {LARGEST} inches (such as 7x3.5)"
        )
    return inches
