"""Tables of profiles that are left out and predicted from the others."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from testbed.core.errors import InputError
from testbed.cost.known_profiles import profiles_at_hand
from testbed.experiments.real.importers.known_shapes import gpu_named
from testbed.experiments.runs.choice_names import ANY_SERVER
from testbed.experiments.studies.left_out import held_back, imported, tested

HELD_BACK = ("kind", "section", "rows", "outside", "median", "p90")
HEAD = (
    "way",
    "predicted from",
    "GPUs",
    "profiles",
    "decodes",
    "prefills",
    "TTFT",
    "TPOT",
    "latency",
)


def left_out_table(folders: Sequence[Path]) -> pd.DataFrame:
    """A row for each profile that ships or is in a folder, and each way that predicts it from the
    others.
    """
    shipped = list(profiles_at_hand(path=None, gpus=[gpu_named(ANY_SERVER)]))
    shards = [(profile.model.name, profile.profile["num_gpus"]) for profile in shipped]
    profiles = shipped + [profile for folder in folders for profile in imported(folder, shards)]
    return pd.DataFrame(tested(profiles, profiles)).fillna("")


def held_back_rows(folders: Sequence[Path], every: int) -> Iterator[list[str]]:
    """The errors of each `every`-th row of AIConfigurator's tables, predicted from the others."""
    if len(folders) != 1 or every < 2:
        raise InputError(
            key="--held-back",
            problem="takes one folder of AIConfigurator's, and at least 2; 5 is every fifth row",
        )
    for names, group in pd.DataFrame(held_back(folders[0], every)).groupby(["kind", "section"]):
        off = 100 * group["error"].dropna().abs()
        percents = (f"{off.median():.1f}%", f"{off.quantile(0.9):.1f}%")
        yield [*map(str, names), f"{len(off):,}", f"{len(group) - len(off):,}", *percents]


def by_way(table: pd.DataFrame) -> Iterator[list[str]]:
    """A line for each way, for the makers of the profiles that it starts from, and for one GPU and
    several.
    """
    makers = table["source_by"].replace({"measured": "ours", "": "a data sheet"})
    several = table["num_gpus"].gt(1).map({False: "one", True: "several"})
    for names, group in table.groupby([table["way"], makers, several]):
        errors = group[
            [name for name in group if name.endswith("_percent") and "p90" not in name]
        ].abs()
        cells = [f"{errors[name].median():.1f} ({errors[name].max():.1f})" for name in errors]
        yield [*map(str, names), f"{len(group)}", *cells]
