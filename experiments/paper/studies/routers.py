"""Routers of a fleet: on conversations, and on prompts that all share one prefix."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from testbed.experiments.paper.studies.study import Finding, Row, Study, Task, reported
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.run_store import RunStore

MOONCAKE = "mooncake"
COLUMNS = {
    "mean_ttft_s": "mean TTFT (s)",
    "p99_ttft_s": "p99 TTFT (s)",
    "mean_tpot_s": "mean TPOT (s)",
    "found_percent": "prompt tokens found (%)",
}


@dataclass(kw_only=True)
class Routers(Study):
    """A run for each setting, each of its routers and each of its seeds.

    routers: the options of each router by name. settings: by name, the options of its runs
    (`shared` and `overrides`), the names of its `routers`, its `num_seeds`, and whether it replays
    the trace (`replays`), without whose file it is left out.
    """

    routers: Mapping[str, Sequence[str]]
    settings: Mapping[str, Mapping[str, Any]]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return [
            Task(f"{self.name} {name}, {router}", partial(self.served, name, router, num_seeds))
            for name, setting in self.settings.items()
            for router in setting["routers"]
        ]

    def served(
        self, setting: str, router: str, num_seeds: int | None, store: RunStore
    ) -> list[Row]:
        """The simulations of a router, a row for each seed; times in seconds."""
        options, values = self.settings[setting], dict[str, Any]()
        if options["replays"]:
            path = dict(store.lengths).get(MOONCAKE)
            if path is None:
                return []
            values = {"trace.path": path}
        words = [*self.common, *options["shared"], *options["overrides"], *self.routers[router]]
        seeds = range(min(num_seeds or options["num_seeds"], options["num_seeds"]))
        return [
            {"setting": setting, "router": router, "seed": seed}
            | _measures(store, words, {**values, "seed": seed})
            for seed in seeds
        ]

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        return reported(self.name, means(table), "{setting}", "{router}", COLUMNS)


def _measures(store: RunStore, words: Sequence[str], values: Mapping[str, Any]) -> Row:
    summary, run = store.measured(configured(words, values))
    counts, ttft_s = summary["counters"], summary["ttft_s"]
    tokens = counts.get("tokens", 0)
    return {
        "mean_ttft_s": ttft_s["mean"],
        "p50_ttft_s": ttft_s["p50"],
        "p99_ttft_s": ttft_s["p99"],
        "mean_tpot_s": summary["tpot_s"]["mean"],
        "found_percent": 100 * counts["hit_tokens"] / tokens if tokens else None,
        "requests": " ".join(
            str(engine["requests"]["arrived"]) for engine in summary["engines"].values()
        ),
        "run": run,
    }


def means(table: pd.DataFrame) -> pd.DataFrame:
    """The means over the seeds, in the order of the table."""
    return table.groupby(["setting", "router"], sort=False)[list(COLUMNS)].mean().reset_index()
