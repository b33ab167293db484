"""Choices that were made after a predicted row had been seen: what each row would be under the alternative."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from experiments.paper.scorecard import JUDGED, KEY, TURNS, reference, scored, short
from experiments.paper.studies.study import Row, RowKey, Study, Task
from experiments.runs.lab import CONF, Lab
from testbed.core.errors import InputError

FILE = "alternatives.csv"
COLUMNS = ["alternative", *KEY, "published", "chosen", "chosen_verdict", "other", "other_verdict", "turns", "note"]
Card = dict[RowKey, dict[str, object]]  # scored rows
Load = Callable[[str, tuple[str, ...]], Study]  # a study by name, with overrides of its config
Perform = Callable[[Sequence[Task]], list[list[Row]]]


@dataclass(frozen=True)
class Alternative:
    """Another choice. run: overrides of its runs; figure: of the figures' configs; not_run: why it has neither."""

    name: str
    rows: Mapping[str, Sequence[str]]
    run: tuple[str, ...] = ()
    figure: tuple[str, ...] = ()
    not_run: str = ""

    def row_keys(self) -> list[RowKey]:
        """The judged reference rows that it touches."""
        table = reference()
        judged = table[table["role"].isin(JUDGED)][KEY].itertuples(index=False, name=None)
        found = [key for key in judged if key[1] in self.rows.get(key[0], ())]
        missing = {(f, s) for f, settings in self.rows.items() for s in settings} - {key[:2] for key in found}
        if missing:
            raise InputError(f"{self.name}: no judged row of {sorted(missing)[0]} in {KEY}")
        return found


def alternatives() -> list[Alternative]:
    """All of conf/alternatives.yaml."""
    entries: list[dict[str, Any]] = yaml.safe_load((CONF / "alternatives.yaml").read_text(encoding="utf-8"))
    as_tuples = ({**e, **{key: tuple(e[key]) for key in ("run", "figure") if key in e}} for e in entries)
    return [Alternative(**entry) for entry in as_tuples]


def compare(names: Mapping[str, str], load: Load, perform: Perform) -> pd.DataFrame:
    """Every touched row as chosen and under its alternative, by one seed; `names` has the study of each figure."""
    pairs = [
        (other, (load(name, ()), ()), (load(name, other.figure), other.run))
        for other in alternatives()
        if not other.not_run
        for name in dict.fromkeys(names[figure] for figure in other.rows)
    ]
    sides = [(other.row_keys(), study.only(other.row_keys()), runs) for other, *both in pairs for study, runs in both]
    cards = iter(cards_of(sides, perform))
    rows = [row for other, *_ in pairs for row in paired(other.name, next(cards), next(cards))]
    return pd.DataFrame([*rows, *not_run()], columns=COLUMNS).fillna("")


def cards_of(sides: Sequence[tuple[list[RowKey], Study, tuple[str, ...]]], perform: Perform) -> list[Card]:
    """The scored rows of each study with its overrides; the tasks of all share the cores."""
    tasks = [[under(task, overrides) for task in study.tasks(1)] for _, study, overrides in sides]
    results = iter(perform([task for part in tasks for task in part]))
    tables = [pd.DataFrame([row for rows in islice(results, len(part)) for row in rows]) for part in tasks]
    return [verdicts(study, table, keys) for (keys, study, _), table in zip(sides, tables, strict=True)]


def not_run() -> list[dict[str, object]]:
    """The rows of the alternatives that no config can express."""
    return [
        {"alternative": other.name, **dict(zip(KEY, key, strict=True)), "turns": "not run", "note": other.not_run}
        for other in alternatives()
        if other.not_run
        for key in other.row_keys()
    ]


def under(task: Task, overrides: tuple[str, ...]) -> Task:
    """The task with these overrides in all its runs."""
    return Task(" ".join((task.label, *overrides)), partial(_work, task=task, overrides=overrides))


def _work(lab: Lab, task: Task, overrides: tuple[str, ...]) -> list[Row]:
    return task.work(replace(lab, overrides=overrides))


def verdicts(study: Study, table: pd.DataFrame, keys: Collection[RowKey]) -> Card:
    """The scored rows of a table, of those that are asked for."""
    published = {tuple(row[name] for name in KEY): row for row in reference().to_dict("records")}
    findings = {(f.figure, f.setting, f.system, f.quantity): f for f in study.findings(table)}
    return {key: scored(published[key], findings[key]) for key in keys if key in findings}


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


def marked(card: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The scorecard with the names of the alternatives under which a row's verdict turns, as far as they are known."""
    if not (folder / FILE).is_file():
        return card
    turning = pd.read_csv(folder / FILE, keep_default_na=False, dtype=str).query("turns == 'yes'")
    names = turning.groupby(KEY)["alternative"].agg("; ".join).to_dict()
    card[TURNS] = [names.get(tuple(row[key] for key in KEY), "") for row in card.to_dict("records")]
    return card
