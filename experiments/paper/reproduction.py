"""Runs the studies of figures, writes and draws their tables, and scores them.

All studies share the cores. A reproduction can be stopped and resumed at any time.
`run_alternatives` scores the rows again under other choices, since some choices were made after a
predicted row was seen.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import hydra.utils
import pandas as pd
import yaml
from joblib import Parallel, delayed

from testbed.core.errors import InputError
from testbed.experiments.look.plots import save
from testbed.experiments.paper.futures import (
    futures_of,
    with_future,
    with_futures,
    without_unused,
)
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
    with_lengths,
)
from testbed.experiments.paper.studies.study import Finding, Row, RowKey, Study, Task
from testbed.experiments.runs.choice_names import CONF
from testbed.experiments.runs.compose import composed
from testbed.experiments.runs.error_lines import as_refusal
from testbed.experiments.runs.progress import left, status_line
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
# Performs groups of tasks; returns a table for each group.
Perform = Callable[[Sequence[Sequence[Task]]], list[pd.DataFrame]]
Finished = Callable[[int, pd.DataFrame], None]


@dataclass(frozen=True)
class Alternative:
    """An alternative to a choice.

    rows: the settings that it touches, by figure. run: overrides of its runs. figure: overrides of
    the figures' configs. not_run: the reason if it has neither.
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
        named = {(figure, setting) for figure in self.rows for setting in self.rows[figure]}
        missing = named - {(figure, setting) for figure, setting, *_ in keys}
        if missing:
            raise InputError(
                key=self.name, problem=f"no judged row of {sorted(missing)[0]} in {KEY}"
            )
        return keys


def alternatives() -> list[Alternative]:
    """The alternatives in conf/alternatives.yaml."""
    entries: list[dict[str, Any]] = yaml.safe_load(
        (CONF / "alternatives.yaml").read_text(encoding="utf-8")
    )
    return [Alternative(**entry) for entry in entries]


def run_alternatives(figures: Sequence[str], perform: Perform) -> pd.DataFrame:
    """The rows of these figures that alternatives touch: as chosen and as altered, by one seed."""
    study_of = {figure: study.name for study in map(load, figures) for figure in study.covers}
    pairs = list[tuple[Alternative, str]]()
    for other in alternatives():
        if not other.not_run:
            pairs += [(other, name) for name in dict.fromkeys(study_of[f] for f in other.rows)]
    sides = list[tuple[Alternative, Study, Sequence[str]]]()  # as chosen, then under it
    for other, name in pairs:
        for figure, run in (((), ()), (other.figure, other.run)):
            sides.append((other, load(name, figure).only(other.row_keys()), run))
    tables = perform([[under(task, run) for task in study.tasks(1)] for _, study, run in sides])
    cards = [
        verdicts(study, table, other.row_keys())
        for (other, study, _), table in zip(sides, tables, strict=True)
    ]
    rows = list[dict[str, object]]()
    for (other, _), chosen, changed in zip(pairs, cards[::2], cards[1::2], strict=True):
        rows += paired(other.name, chosen, changed)
    return pd.DataFrame([*rows, *not_run()], columns=COLUMNS).fillna("")


def under(task: Task, overrides: Sequence[str]) -> Task:
    """The task with more overrides in all its runs."""
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
    """Rows of the alternatives that no config can express."""
    rows: list[dict[str, object]] = []
    for other in alternatives():
        if other.not_run:
            verdict = {"turns": "not run", "note": other.not_run}
            for key in other.row_keys():
                named = dict(zip(KEY, key, strict=True))
                rows.append({"alternative": other.name, **named, **verdict})
    return rows


def annotated(card: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The scorecard with the alternatives that turn the verdict of each row.

    They are read from the folder's table; without one the scorecard is unchanged.
    """
    if not (folder / ALTERNATIVES_FILE).is_file():
        return card
    turning = pd.read_csv(folder / ALTERNATIVES_FILE, keep_default_na=False, dtype=str).query(
        "turns == 'yes'"
    )
    names = turning.groupby(KEY)["alternative"].agg("; ".join).to_dict()
    return card.assign(**{TURNS: [names.get(key_of(row), "") for row in card.to_dict("records")]})


def load(name: str, overrides: Sequence[str] = ()) -> Study:
    """The study of a figure's config.

    Its figure in the reference has the config's name, unless the config lists others in `covers`.
    """
    config = composed(f"figure/{name}", tuple(overrides)).figure
    study: Study = hydra.utils.instantiate(
        {"name": name, "covers": [name], **config}, _convert_="all"
    )
    return study


def run_studies(
    studies: Sequence[Study], store: RunStore, jobs: int, num_seeds: int | None, out: Path
) -> list[pd.DataFrame]:
    """The table of each study; it is written and drawn as soon as the study's tasks are done.

    Raises:
        InputError: before the first task, if a study replays a trace that the user did not give.
    """
    for study in studies:
        study.given_files(store)

    def finished(number: int, table: pd.DataFrame) -> None:
        study = studies[number]
        path = out / f"{study.name}.csv"
        write_text(path, table.to_csv(index=False))
        figure = study.draw(path)
        for suffix in ("png", "pdf"):
            save(figure, out / f"{study.name}.{suffix}")

    return perform([study.tasks(num_seeds) for study in studies], store, jobs, finished)


def score(
    studies: Sequence[Study],
    tables: Sequence[pd.DataFrame],
    replayed: Sequence[str],
    out: Path,
) -> pd.DataFrame:
    """Score the figures' tables; write and return the scorecard.

    replayed: names of the data sets whose own lengths were replayed.
    """
    findings, figures = list[Finding](), list[str]()
    for study, table in zip(studies, tables, strict=True):
        findings += study.findings(table)
        figures += study.covers
    card = with_lengths(annotated(scorecard(findings, figures), out), replayed)
    card = with_futures(card, futures_of(tables))
    write_text(out / "scorecard.csv", card.to_csv(index=False))
    return card


def perform(
    groups: Sequence[Sequence[Task]],
    store: RunStore,
    jobs: int,
    finished: Finished = lambda *_: None,
) -> list[pd.DataFrame]:
    """Perform groups of tasks on all cores; returns a table for each group.

    Finished runs are kept in the store. `finished` receives the number and the table of each group
    as soon as it is done.
    """
    tables = [pd.DataFrame() for _ in groups]
    rows_of: list[dict[int, list[Row]]] = [{} for _ in groups]  # by place of the task
    tasks = Tasks(groups, jobs)
    workers = Parallel(min(jobs, tasks.total) or 1, batch_size=1, return_as="generator_unordered")
    work = [delayed(carry_out)(at, task, store) for at, task in tasks.waiting.items()]
    with status_line(tasks.progress):
        try:
            for at, rows in workers(work):
                del tasks.waiting[at]
                number, place = at
                rows_of[number][place] = rows
                if len(rows_of[number]) == len(groups[number]):
                    tables[number] = _table(rows_of[number])
                    finished(number, tables[number])
        finally:
            remove_leftovers(store.folder)  # of workers that were stopped
    return tables


class Tasks:
    """The tasks of some groups. waiting: those without a result, by number of the group and place
    in it.
    """

    def __init__(self, groups: Sequence[Sequence[Task]], jobs: int) -> None:
        self.waiting = {
            (number, place): task
            for number, group in enumerate(groups)
            for place, task in enumerate(group)
        }
        self.total = len(self.waiting)
        self._jobs = jobs
        self._began = time.monotonic()

    def progress(self) -> str:
        """The number done, the time that the others take, and those that are running."""
        running = " | ".join(task.label for task in [*self.waiting.values()][: self._jobs])
        done = self.total - len(self.waiting)
        rest = left(done, self.total, time.monotonic() - self._began)
        return f"{done} of {self.total} done{rest}; running: {running or 'drawing'}"


def _table(rows_of_task: Mapping[int, list[Row]]) -> pd.DataFrame:
    """The rows of a group, in the order of its tasks."""
    in_order = [rows_of_task[place] for place in sorted(rows_of_task)]
    return without_unused(pd.DataFrame(list(chain.from_iterable(in_order))))


def carry_out(
    at: tuple[int, int], task: Task, store: RunStore
) -> tuple[tuple[int, int], list[Row]]:
    """Perform a task, perhaps in a worker process.

    An error becomes a refusal here, because its class might not be pickled back.
    """
    try:
        return at, with_future(task.work(store), store)
    except Exception as error:
        raise as_refusal(error).within(task.label) from error
