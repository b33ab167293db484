"""`testbed reproduce`: the paper's experiments, their figures and the scorecard."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import hydra.utils
import pandas as pd

from experiments.commands.arguments.reproduce import BESIDE, BEYOND, ORDER, available, parser
from experiments.commands.console import wide_console
from experiments.paper import alternatives, embedded_lengths, seeds
from experiments.paper.scorecard import card_table, scorecard
from experiments.paper.studies.study import Row, Study, Task
from experiments.paper.style import save
from experiments.runs.lab import Lab, composed
from experiments.runs.length_files import length_file
from experiments.runs.whole_files import write_text
from experiments.runs.workers import perform
from testbed.core.errors import InputError


def main(argv: list[str]) -> None:
    """Run, write tables, draw from the tables, score."""
    options = parser().parse_args(argv)
    names = chosen(options.figures)
    studies = [load(name) for name in names if name not in BESIDE]
    lab = Lab(options.out / "runs", tuple(length_file(text) for text in options.lengths))
    options.out.mkdir(parents=True, exist_ok=True)
    console = wide_console()
    tables = run_studies(studies, lab, options.jobs, options.seeds, options.out)
    for name in names:
        if name in BESIDE:
            table = beside(name, partial(perform, lab=lab, jobs=options.jobs), options.seeds)
            write_text(options.out / f"{name}.csv", table.to_csv(index=False))
            console.print(table.to_string(index=False), highlight=False)
    if not studies:
        return
    findings = [f for study, table in zip(studies, tables, strict=True) for f in study.findings(table)]
    card = scorecard(findings, [name for study in studies for name in study.covers])
    card = alternatives.marked(seeds.with_intervals(card, options.out), options.out)
    write_text(options.out / "scorecard.csv", card.to_csv(index=False))
    console.print(card_table(card))
    for remark in embedded_lengths.remarks(card, dict(lab.lengths), options.figures):
        console.print(remark, highlight=False, soft_wrap=True)
    console.print(f"figures, tables and scorecard.csv: {options.out}", highlight=False, soft_wrap=True)


def chosen(figures: Sequence[str]) -> list[str]:
    """The figures asked for, each once, in the paper's order."""
    known = [*available(), *BESIDE]
    unknown = [name for name in figures if name not in (*known, "all")]
    if unknown:
        raise InputError(f"no figure {unknown[0]!r}; choose from {', '.join(known)}, all")
    return [name for name in known if name in figures or ("all" in figures and name in ORDER)]


def load(name: str, overrides: tuple[str, ...] = ()) -> Study:
    """The study that a figure's config describes."""
    study: Study = hydra.utils.instantiate(composed(f"figure/{name}", overrides).figure, _convert_="all")
    return study


def beside(name: str, work: Callable[[Sequence[Task]], list[list[Row]]], num_seeds: int | None) -> pd.DataFrame:
    """The table of seeds, or of alternatives."""
    studies = [load(figure) for figure in available() if figure not in BEYOND]
    if name == "seeds":
        return seeds.over_seeds(studies, work, num_seeds or seeds.NUM_SEEDS)
    names = {figure: study.name for study in studies for figure in study.covers}
    return alternatives.compare(names, load, work)


def run_studies(studies: Sequence[Study], lab: Lab, jobs: int, num_seeds: int | None, out: Path) -> list[pd.DataFrame]:
    """The table of each study, published as soon as its own tasks are done; the tasks of all share the cores."""
    tasks = [study.tasks(num_seeds) for study in studies]
    owners = [number for number, part in enumerate(tasks) for _ in part]
    left = Counter(owners)
    rows: dict[int, list[Row]] = {}
    tables: dict[int, pd.DataFrame] = {}

    def finished(task: int, found: list[Row]) -> None:
        study = owners[task]
        rows[task] = found
        left[study] -= 1
        if not left[study]:
            tables[study] = pd.DataFrame([row for i, owner in enumerate(owners) if owner == study for row in rows[i]])
            publish(studies[study], tables[study], out)

    perform([task for part in tasks for task in part], lab, jobs, finished)
    return [tables[number] for number in range(len(studies))]


def publish(study: Study, table: pd.DataFrame, out: Path) -> None:
    """Write the table, then draw from what was written."""
    path = out / f"{study.name}.csv"
    write_text(path, table.to_csv(index=False))
    figure = study.draw(path)
    for suffix in ("png", "pdf"):
        save(figure, out / f"{study.name}.{suffix}")
