"""The figures of a reproduction: their studies, run together over the cores, each drawn from its
table, and scored.

Lines say what runs and what is left; it can be stopped and resumed at any time. How far the
scorecard can be trusted: its rows under the alternatives to choices that were made after a
predicted row was seen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hydra.utils
import pandas as pd
import yaml
from joblib import Parallel, delayed

from testbed.core.errors import InputError
from testbed.experiments.paper.scorecard import (
    JUDGED,
    KEY,
    TURNS,
    Card,
    key_of,
    reference,
    scorecard,
    short,
    verdicts,
)
from testbed.experiments.paper.studies.study import Row, RowKey, Study, Task
from testbed.experiments.runs.choice_names import CONF
from testbed.experiments.runs.compose import composed
from testbed.experiments.runs.csv_tables import csv_text, read_csv_table
from testbed.experiments.runs.plots import save
from testbed.experiments.runs.progress import one_line, spoken
from testbed.experiments.runs.run_store import RunStore
from testbed.experiments.runs.whole_files import remove_leftovers, write_text

ALTERNATIVES_FILE = "alternatives.csv"
COLUMNS = [
    "alternative",
    *KEY,
    "published",
    "chosen",
    "chosen_verdict",
    "other",
    "other_verdict",
    "turns",
    "note",
]
Perform = Callable[
    [Sequence[Sequence[Task]]], list[pd.DataFrame]
]  # a table for each group of tasks
Finished = Callable[[int, pd.DataFrame], None]


@dataclass(frozen=True)
class Alternative:
    """Another choice. run: overrides of its runs; figure: of the figures' configs; not_run: why it
    has neither.
    """

    name: str
    rows: Mapping[str, Sequence[str]]
    run: Sequence[str] = ()
    figure: Sequence[str] = ()
    not_run: str = ""

    def row_keys(self) -> list[RowKey]:
        """The judged reference rows that it touches."""
        table = reference()
        judged = table[table["role"].isin(JUDGED)][KEY].itertuples(index=False, name=None)
        keys = [key for key in judged if key[1] in self.rows.get(key[0], ())]
        missing = {(f, s) for f, settings in self.rows.items() for s in settings} - {
            key[:2] for key in keys
        }
        if missing:
            raise InputError(f"{self.name}: no judged row of {sorted(missing)[0]} in {KEY}")
        return keys


def alternatives() -> list[Alternative]:
    """All of conf/alternatives.yaml."""
    entries: list[dict[str, Any]] = yaml.safe_load(
        (CONF / "alternatives.yaml").read_text(encoding="utf-8")
    )
    return [Alternative(**entry) for entry in entries]


def run_alternatives(figures: Sequence[str], perform: Perform) -> pd.DataFrame:
    """Every row of these figures that an alternative touches, as chosen and under it, by one
    seed.
    """
    names = {figure: study.name for study in map(load, figures) for figure in study.covers}
    others = [other for other in alternatives() if not other.not_run]
    pairs = [
        (other, name)
        for other in others
        for name in dict.fromkeys(names[figure] for figure in other.rows)
    ]
    sides = [
        (other, load(name, figure).only(other.row_keys()), run)
        for other, name in pairs
        for figure, run in (((), ()), (other.figure, other.run))
    ]
    tables = perform([[under(task, run) for task in study.tasks(1)] for _, study, run in sides])
    cards = iter(
        [
            verdicts(study, t, other.row_keys())
            for (other, study, _), t in zip(sides, tables, strict=True)
        ]
    )
    rows = [row for other, _ in pairs for row in paired(other.name, next(cards), next(cards))]
    return pd.DataFrame([*rows, *not_run()], columns=COLUMNS).fillna("")


def under(task: Task, overrides: Sequence[str]) -> Task:
    """The task with these overrides in all its runs."""
    return Task(
        " ".join((task.label, *overrides)),
        lambda store: task.work(replace(store, overrides=tuple(overrides))),
    )


def paired(name: str, chosen: Card, other: Card) -> list[dict[str, object]]:
    """The rows as chosen and under the alternative."""
    return [
        {
            "alternative": name,
            **{column: row[column] for column in (*KEY, "published")},
            "chosen": short(row["simulated"]),
            "chosen_verdict": row["verdict"],
            "other": short(other[key]["simulated"]),
            "other_verdict": other[key]["verdict"],
            "turns": "yes" if row["verdict"] != other[key]["verdict"] else "no",
        }
        for key, row in chosen.items()
    ]


def not_run() -> list[dict[str, object]]:
    """The rows of the alternatives that no config can express."""
    rows: list[dict[str, object]] = []
    for other in alternatives():
        if other.not_run:
            verdict = {"turns": "not run", "note": other.not_run}
            for key in other.row_keys():
                named = dict(zip(KEY, key, strict=True))
                rows.append({"alternative": other.name, **named, **verdict})
    return rows


def annotated(card: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The scorecard with the names of the alternatives in the folder's table under which a row's
    verdict turns.
    """
    if not (folder / ALTERNATIVES_FILE).is_file():
        return card
    turning = read_csv_table(folder / ALTERNATIVES_FILE, keep_default_na=False, dtype=str).query(
        "turns == 'yes'"
    )
    names = turning.groupby(KEY)["alternative"].agg("; ".join).to_dict()
    return card.assign(**{TURNS: [names.get(key_of(row), "") for row in card.to_dict("records")]})


def load(name: str, overrides: Sequence[str] = ()) -> Study:
    """The study that a figure's config describes; the reference has the figure by the config's
    name, unless it says.
    """
    config = composed(f"figure/{name}", tuple(overrides)).figure
    study: Study = hydra.utils.instantiate(
        {"name": name, "covers": [name], **config}, _convert_="all"
    )
    return study


def run_studies(
    studies: Sequence[Study], store: RunStore, jobs: int, num_seeds: int | None, out: Path
) -> list[pd.DataFrame]:
    """The table of each study, published as soon as its own tasks are done."""

    def finished(number: int, table: pd.DataFrame) -> None:
        study = studies[number]
        path = out / f"{study.name}.csv"
        write_text(path, csv_text(table))
        figure = study.draw(path)  # from what was written
        for suffix in ("png", "pdf"):
            save(figure, out / f"{study.name}.{suffix}")

    return perform([study.tasks(num_seeds) for study in studies], store, jobs, finished)


def score(studies: Sequence[Study], tables: Sequence[pd.DataFrame], out: Path) -> pd.DataFrame:
    """The scorecard of the figures' tables, written too."""
    findings = [
        f for study, table in zip(studies, tables, strict=True) for f in study.findings(table)
    ]
    card = annotated(scorecard(findings, [name for study in studies for name in study.covers]), out)
    write_text(out / "scorecard.csv", csv_text(card))
    return card


def perform(
    groups: Sequence[Sequence[Task]],
    store: RunStore,
    jobs: int,
    finished: Finished = lambda *_: None,
) -> list[pd.DataFrame]:
    """A table for each group of tasks; the tasks of all share the cores. Finished runs are kept in
    the store. `finished` receives the number and the table of each group as soon as it is done.
    """
    tables = [pd.DataFrame() for _ in groups]
    rows_of: list[dict[int, list[Row]]] = [{} for _ in groups]
    waiting = {
        (number, place): task
        for number, group in enumerate(groups)
        for place, task in enumerate(group)
    }
    work = [delayed(carry_out)(at, task, store) for at, task in waiting.items()]

    def progress() -> str:
        running = " | ".join(task.label for task in [*waiting.values()][:jobs])
        return f"{len(work) - len(waiting)} of {len(work)} done; running: {running or 'drawing'}"

    with spoken(progress):
        try:
            for at, rows in Parallel(
                min(jobs, len(work)) or 1, batch_size=1, return_as="generator_unordered"
            )(work):
                del waiting[at]
                number, place = at
                rows_of[number][place] = rows
                if len(rows_of[number]) == len(groups[number]):
                    tables[number] = pd.DataFrame(
                        [row for _, rows in sorted(rows_of[number].items()) for row in rows]
                    )
                    finished(number, tables[number])
        finally:
            remove_leftovers(store.folder)  # of workers that were stopped
    return tables


def carry_out(
    at: tuple[int, int], task: Task, store: RunStore
) -> tuple[tuple[int, int], list[Row]]:
    """A task, in a worker if there are several; its error must survive the way back, so it becomes
    one line here.
    """
    try:
        return at, task.work(store)
    except Exception as error:
        raise InputError(f"{task.label}: {one_line(error)}") from error
