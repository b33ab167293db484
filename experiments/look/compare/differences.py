"""Differences between the configs of finished runs."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from testbed.experiments.look.compare.finished_run import FinishedRun
from testbed.experiments.runs.part_words import name_words
from testbed.experiments.runs.points import SEED
from testbed.experiments.runs.sweep_table import legible

ABSENT = "-"
POOL = "server.num_blocks"
SHAPES = ("model", "gpu", "drafter")  # whose fields their names imply


def differences(runs: Sequence[FinishedRun]) -> pd.DataFrame:
    """Config keys whose values differ between runs, in the order of the configs. A part's seed that
    is the run's own in all runs is no difference of its own.
    """
    configs = [dict(_flat(run.config)) for run in runs]
    keys = dict.fromkeys(key for config in configs for key in config)
    values = {key: [config.get(key, ABSENT) for config in configs] for key in keys}
    own_seeds = values.get(SEED)
    rows = {
        key: of_runs
        for key, of_runs in values.items()
        if len(set(of_runs)) > 1 and not (key.endswith(f".{SEED}") and of_runs == own_seeds)
    }
    return pd.DataFrame.from_dict(rows, orient="index", columns=[run.name for run in runs])


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names and values as text."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, _cell(value)


def _cell(value: Any) -> str:
    """A config's value as text; 2.0 and 2 are the same."""
    if value is None:
        return "null"
    if isinstance(value, float) and value.is_integer():
        return f"{value:.0f}"
    return str(value)


def implied_by_names(different: pd.DataFrame) -> list[str]:
    """Keys of models and GPUs whose names differ, if runs with the same name have the same
    value.
    """
    keys, implied = list(map(str, different.index)), list[str]()
    for name in filter(_names_a_shape, keys):
        fields = [key for key in keys if key.startswith(name.removesuffix("name")) and key != name]
        values_of_name = different.loc[fields].T.groupby(different.loc[name]).nunique()
        implied += [field for field in fields if values_of_name[field].max() == 1]
    return implied


def _names_a_shape(key: str) -> bool:
    """True if a key is the name of a model or a GPU."""
    return key.endswith(".name") and key.split(".")[-2] in SHAPES


def readable(key: str, values: list[str]) -> tuple[str, list[str]]:
    """A key and its values; classes lose their module if their names differ."""
    short = [value.rpartition(".")[2] for value in values]
    if not key.endswith("._target_") or len(set(short)) < len(set(values)):
        return key, values
    return key.removesuffix("._target_"), [name_words(name) for name in short]


def independent_differences(runs: Sequence[FinishedRun]) -> pd.DataFrame:
    """A row per run, a column per differing config key, text before numbers, without keys that
    follow from others or read alike; of seeds the run's own is kept, since such runs are
    replications.
    """
    # The choice of outputs changes no run
    different = differences(runs).drop(index="outputs", errors="ignore")
    shown = pd.DataFrame(
        dict(readable(str(key), list(different.loc[key])) for key in different.index),
        index=range(len(runs)),
    )
    independent: list[str] = []
    for name in sorted(
        shown, key=lambda name: (_are_numbers_if_any(shown[name]), _rank(str(name)))
    ):
        words = {legible(str(name), value) for value in shown[name]}
        if len(words) > 1 and not _follows(str(name), shown, independent):
            independent.append(str(name))
    return shown[independent]


def _follows(name: str, shown: pd.DataFrame, independent: Sequence[str]) -> bool:
    """True if another key determines this one; of the pool's blocks, whether all others do."""
    if name != POOL:
        return any(shown.groupby(other)[name].nunique().max() == 1 for other in independent)
    others = [other for other in independent if _rank(other) == 0]
    return bool(others) and bool(shown.groupby(others)[name].nunique().max() == 1)


def words_of_each(independent: pd.DataFrame) -> list[str]:
    """The words that distinguish each run, as "paged, rate 2"; empty if nothing does."""
    rows = independent.to_numpy().tolist()
    return [", ".join(map(legible, independent, values)) for values in rows]


def _rank(name: str) -> int:
    """Other keys, then the run's seed, those of parts, and the pool's blocks, which often follow
    from options of a server.
    """
    if name == POOL:
        return 3
    return 0 if name.rpartition(".")[2] != SEED else 1 + (name != SEED)


def are_numbers(values: pd.Series) -> bool:
    """True if all these texts are numbers."""
    return bool(pd.to_numeric(values, errors="coerce").notna().all())


def _are_numbers_if_any(values: pd.Series) -> bool:
    """True if those of these texts that name a value are numbers, and some do."""
    named = values[~values.isin((ABSENT, "null"))]
    return bool(len(named)) and are_numbers(named)
