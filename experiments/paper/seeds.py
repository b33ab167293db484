"""How far the rows that depend on prices move with the seed."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pandas as pd

from experiments.paper.alternatives import Perform, verdicts
from experiments.paper.scorecard import KEY, reference
from experiments.paper.studies.curves import interval
from experiments.paper.studies.study import RowKey, Study

FILE = "seeds.csv"
NUM_SEEDS = 5


def price_rows(covers: Sequence[str]) -> list[RowKey]:
    """The reference rows of the part `price` in these figures."""
    table = reference().query("part == 'price'")
    return [key for key in table[KEY].itertuples(index=False, name=None) if key[0] in covers]


def over_seeds(studies: Sequence[Study], perform: Perform, num_seeds: int) -> pd.DataFrame:
    """Each price row by each seed alone: how many of the seeds pass, and the interval of its margin."""
    asked = [(study.only(price_rows(study.covers)), price_rows(study.covers)) for study in studies]
    asked = [(study, keys) for study, keys in asked if keys]
    tasks = [study.tasks(num_seeds) for study, _ in asked]
    results = iter(perform([task for part in tasks for task in part]))
    rows: list[dict[str, object]] = []
    for (study, keys), part in zip(asked, tasks, strict=True):
        table = pd.DataFrame([row for found in islice(results, len(part)) for row in found])
        rows += _rows(study, keys, table, num_seeds)
    return pd.DataFrame(rows)


def _rows(study: Study, keys: Sequence[RowKey], table: pd.DataFrame, num_seeds: int) -> list[dict[str, object]]:
    """Rows without a seed, such as measured prices, are part of every seed's table."""
    seeds = table["seed"] if "seed" in table else pd.Series(float("nan"), index=table.index)
    cards = [verdicts(study, table[(seeds == seed) | seeds.isna()], keys) for seed in range(num_seeds)]
    return [_row(key, [card[key] for card in cards]) for key in keys]


def _row(key: RowKey, by_seed: Sequence[dict[str, object]]) -> dict[str, object]:
    margins = pd.Series([scored["margin"] for scored in by_seed], dtype=float)
    return {
        **dict(zip(KEY, key, strict=True)),
        "seeds": len(by_seed),
        "passed": sum(scored["verdict"] == "pass" for scored in by_seed),
        "mean_margin": margins.mean(),
        "margin_interval": interval(margins.to_numpy(), 0.0),
    }


def with_intervals(card: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The scorecard, where rows without an interval of their own get that of their margin, as far as it is known."""
    if not (folder / FILE).is_file():
        return card
    table = pd.read_csv(folder / FILE, keep_default_na=False, dtype=str)
    said = {tuple(row[key] for key in KEY): f"margin {row['margin_interval']}" for row in table.to_dict("records")}
    card["interval"] = [row["interval"] or said.get(tuple(row[k] for k in KEY), "") for row in card.to_dict("records")]
    return card
