"""Systems of a reproduction that read the future: a column of its tables and of its scorecard."""

import json
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from testbed.experiments.paper.studies.study import Row
from testbed.experiments.runs.run_store import RunStore
from testbed.experiments.runs.run_words import future_read_by

FUTURE = "future_read"
SYSTEMS = ("system", "order")  # the columns of studies that name what ran
VERSUS = " vs "


def with_future(rows: Sequence[Row], store: RunStore) -> list[Row]:
    """The rows of a task with what the run of each reads of the future; a row without a run of its
    own has what the task's runs read, unless it says so itself.
    """
    runs = dict.fromkeys(row["run"] for row in rows if row.get("run"))
    read_by = {run: _future_of(store, run) for run in runs}
    of_task = "; ".join(dict.fromkeys(filter(None, read_by.values())))
    return [{**row, FUTURE: row.get(FUTURE, read_by.get(row.get("run"), of_task))} for row in rows]


def _future_of(store: RunStore, run: str) -> str:
    text = (store.folder / run / "summary.json").read_text(encoding="utf-8")
    return future_read_by(json.loads(text))


def without_unused(table: pd.DataFrame) -> pd.DataFrame:
    """The table without the column, if nothing in it reads the future."""
    return table if FUTURE in table and table[FUTURE].any() else table.drop(columns=FUTURE)


def futures_of(tables: Sequence[pd.DataFrame]) -> dict[str, str]:
    """Values of the future that systems of these tables read, by name."""
    read = dict[str, str]()
    for table in tables:
        if FUTURE in table:
            oracles = table[table[FUTURE] != ""]
            for name in SYSTEMS:
                if name in oracles:
                    read |= dict(zip(oracles[name], oracles[FUTURE], strict=True))
    return read


def with_futures(card: pd.DataFrame, futures: Mapping[str, str]) -> pd.DataFrame:
    """The scorecard with a column that names what reads the future in each row; unchanged if
    nothing does.
    """
    if not futures:
        return card
    named = [
        "; ".join(f"{name}: {futures[name]}" for name in system.split(VERSUS) if name in futures)
        for system in card["system"]
    ]
    return card.assign(**{FUTURE: named})


def remarks_on(futures: Mapping[str, str]) -> Iterator[str]:
    """A line for each system that reads the future."""
    for name, read in futures.items():
        yield f"{name} reads the future, as no real server can: {read}"
