"""`testbed reproduce`: the paper's experiments, their figures and the scorecard."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import hydra.utils
import pandas as pd

from experiments.commands.arguments import Parser, at_least_one
from experiments.commands.console import wide_console
from experiments.paper import alternatives, embedded_lengths, seeds
from experiments.paper.scorecard import card_table, scorecard
from experiments.paper.studies.study import Row, Study, Task
from experiments.paper.style import save
from experiments.runs.lab import CONF, FILE_READERS, Lab, composed, length_file
from experiments.runs.whole_files import write_text
from experiments.runs.workers import perform
from testbed.core.errors import InputError

ORDER = ("table1", "fig1", "fig2", "fig11", "fig12", "fig13", "fig14", "fig15", "fig16", "fig17", "fig18", "fig19")

BEYOND = ("mooncake", "agent_sessions")
BESIDE = ("seeds", "alternatives")  # how far the scorecard can be trusted; kept on disk, apart from `all`


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


def parser() -> Parser:
    """The command's arguments."""
    known = ", ".join([*available(), *BESIDE, "all"])
    this = Parser(prog="testbed reproduce", description="Run experiments of the PagedAttention paper, draw, score.")
    this.add_argument("figures", nargs="+", metavar="FIGURE", help=known)
    this.add_argument(
        "--lengths", action="append", default=[], metavar="[NAME=]FILE",
        help=f"replay a length file in place of an embedded model ({', '.join(FILE_READERS)}; default sharegpt)",
    )  # fmt: skip
    this.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    this.add_argument("--jobs", type=at_least_one, default=os.cpu_count() or 1, metavar="N", help="default: all cores")
    this.add_argument("--seeds", type=at_least_one, metavar="N", help="seeds 0 to N-1; default: each figure's own")
    return this


def available() -> list[str]:
    """Figures that have a config, in the paper's order."""
    return [name for name in (*ORDER, *BEYOND) if (CONF / "figure" / f"{name}.yaml").exists()]


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
