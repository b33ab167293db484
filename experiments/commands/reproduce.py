"""`testbed reproduce` and `plot`: the experiments of the paper, their figures and the scorecard."""

import os
import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from testbed.core.errors import InputError
from testbed.experiments.commands.terminal import FORMATS, show
from testbed.experiments.runs.choice_names import files_of, length_file
from testbed.experiments.runs.whole_files import write_text

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


def main(options: Namespace) -> None:
    """Run, write tables, draw from the tables, score."""
    from testbed.experiments.paper.reproduction import (
        load,
        perform,
        run_alternatives,
        run_studies,
        score,
    )
    from testbed.experiments.paper.scorecard import card_table, next_to_other, remarks
    from testbed.experiments.runs.csv_tables import csv_text
    from testbed.experiments.runs.run_store import RunStore, gpu_of_profile

    names = chosen(options.figures)
    studies = [load(name) for name in names if name != ALTERNATIVES]
    store = RunStore(options.out / "runs", tuple(length_file(text) for text in options.lengths))
    other = gpu_of_profile(options.profile).name if options.profile else ""
    options.out.mkdir(parents=True, exist_ok=True)
    jobs = options.jobs or os.cpu_count() or 1
    tables = run_studies(studies, store, jobs, options.seeds, options.out)
    if ALTERNATIVES in names:
        paper = [name for name in available() if name not in BEYOND]
        table = run_alternatives(paper, partial(perform, store=store, jobs=jobs))
        write_text(options.out / "alternatives.csv", csv_text(table))
        show(table.to_string(index=False))
    if not studies:
        return
    card = score(studies, tables, options.out)
    if options.profile:
        folder = options.out / other
        folder.mkdir(exist_ok=True)
        moved = [study for study in studies if study.name not in SAME_ANYWHERE]
        theirs = run_studies(
            moved, replace(store, profile=options.profile), jobs, options.seeds, folder
        )
        there = score(moved, theirs, folder)
        card = next_to_other(card, there[~there["figure"].isin(SAME_ANYWHERE)], other)
        write_text(options.out / "scorecard.csv", csv_text(card))
        show(f"the same figures on {other}, with the paper's pools: {folder}")
    show(card_table(card), *remarks(card, dict(store.lengths), options.figures))
    show(f"figures, tables and scorecard.csv: {options.out}")


def available() -> list[str]:
    """Figures that have a config, in the paper's order."""
    there = files_of("figure")
    return [name for name in (*ORDER, *BEYOND) if name in there]


def chosen(figures: Sequence[str]) -> list[str]:
    """The requested figures, each once, in the paper's order."""
    known = [*available(), ALTERNATIVES]
    unknown = [name for name in figures if name not in (*known, "all")]
    if unknown:
        raise InputError(f"figure {unknown[0]!r}: is unknown (choose from {', '.join(known)}, all)")
    return [name for name in known if name in figures or ("all" in figures and name in ORDER)]


def plot(options: Namespace) -> None:
    """Draw, and print the path."""
    out = options.out or Path(f"{options.figure}.pdf")
    if options.figure not in available():
        raise InputError(
            f"figure {options.figure!r}: is unknown (choose from {', '.join(available())})"
        )
    if out.suffix not in FORMATS:
        raise InputError(
            f"--out {out}: cannot be drawn as {out.suffix or 'a file without suffix'} "
            f"({', '.join(FORMATS)})"
        )
    size = SIZE.fullmatch(options.size or "0x0")
    if size is None or (
        options.size and not all(0.5 <= float(inches) <= 50 for inches in size.groups())
    ):
        raise InputError(
            f"--size {options.size}: no width and height of 0.5 to 50 inches (such as 7x3.5)"
        )
    table = options.folder / f"{options.figure}.csv"
    if not table.is_file():
        raise InputError(
            f"{table}: no such file (testbed reproduce {options.figure} --out {options.folder} "
            f"writes it)"
        )
    from testbed.experiments.paper.reproduction import load
    from testbed.experiments.runs.plots import save

    figure = load(options.figure).draw(table)
    if options.size:
        figure.set_size_inches(float(size[1]), float(size[2]))
    save(figure, out)
    print(f"figure: {out}")
