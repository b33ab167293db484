"""How far the scorecard can be trusted: its rows under choices made after a predicted row was seen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from testbed.core.errors import InputError
from testbed.experiments.paper.scorecard import JUDGED, KEY, TURNS, Card, key_of, reference, short, verdicts
from testbed.experiments.paper.studies.study import Row, RowKey, Study, Task
from testbed.experiments.runs.choice_names import CONF
from testbed.experiments.runs.run_store import RunStore

ALTERNATIVES_FILE = "alternatives.csv"
COLUMNS = ["alternative", *KEY, "published", "chosen", "chosen_verdict", "other", "other_verdict", "turns", "note"]
Load = Callable[[str, tuple[str, ...]], Study]  # a study by name, with overrides of its config
Perform = Callable[[Sequence[Sequence[Task]]], list[pd.DataFrame]]  # a table for each group of tasks


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
    overrides = ({key: tuple(e.get(key, ())) for key in ("run", "figure")} for e in entries)
    return [Alternative(**(entry | words)) for entry, words in zip(entries, overrides, strict=True)]


def compare(names: Mapping[str, str], load: Load, perform: Perform) -> pd.DataFrame:
    """Every touched row as chosen and under its alternative, by one seed; `names` has the study of each figure."""
    others = [other for other in alternatives() if not other.not_run]
    pairs = [(other, name) for other in others for name in dict.fromkeys(names[figure] for figure in other.rows)]
    sides = [
        (other, load(name, figure).only(other.row_keys()), run)
        for other, name in pairs
        for figure, run in (((), ()), (other.figure, other.run))
    ]
    tables = perform([[under(task, run) for task in study.tasks(1)] for _, study, run in sides])
    cards = iter([verdicts(study, t, other.row_keys()) for (other, study, _), t in zip(sides, tables, strict=True)])
    rows = [row for other, _ in pairs for row in paired(other.name, next(cards), next(cards))]
    return pd.DataFrame([*rows, *not_run()], columns=COLUMNS).fillna("")


def under(task: Task, overrides: tuple[str, ...]) -> Task:
    """The task with these overrides in all its runs."""
    return Task(" ".join((task.label, *overrides)), partial(_work, task=task, overrides=overrides))


def _work(store: RunStore, task: Task, overrides: tuple[str, ...]) -> list[Row]:
    return task.work(replace(store, overrides=overrides))


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
    return [
        {"alternative": other.name, **dict(zip(KEY, key, strict=True)), "turns": "not run", "note": other.not_run}
        for other in alternatives()
        if other.not_run
        for key in other.row_keys()
    ]


def annotated(card: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The scorecard with the names of the alternatives in the folder's table under which a row's verdict turns."""
    if not (folder / ALTERNATIVES_FILE).is_file():
        return card
    turning = pd.read_csv(folder / ALTERNATIVES_FILE, keep_default_na=False, dtype=str).query("turns == 'yes'")
    names = turning.groupby(KEY)["alternative"].agg("; ".join).to_dict()
    return card.assign(**{TURNS: [names.get(key_of(row), "") for row in card.to_dict("records")]})
