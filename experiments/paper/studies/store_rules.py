"""Which blocks to store below the GPUs, when the open sessions need more and more of the memory there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd

from testbed.config import RunConfig
from testbed.experiments.paper.studies.open_sessions import OpenSessions, measures, reported
from testbed.experiments.paper.studies.study import Finding, Row, Task
from testbed.experiments.runs.run_store import RunStore

NO_TIER = "no tier"
EAGER, AWARE = "write through", "before eviction"
COLUMNS = {"found_percent": "blocks found (%)", "slower_s": "mean latency beyond that without a tier (s)"}


@dataclass(kw_only=True)
class StoreRules(OpenSessions):
    """A closed loop of agent sessions, without a tier, and with each store rule and each size of the tier.

    The tier is as large as live_over_dram says.
    """

    live_over_dram: Sequence[float]
    no_tier: Sequence[str]
    tier: Sequence[str]
    rules: Mapping[str, Sequence[str]]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        runs = [(NO_TIER, 0.0), *((rule, ratio) for ratio in self.live_over_dram for rule in self.rules)]
        return [
            Task(f"{self.name} {rule}, {ratio:g}", partial(self.served, rule=rule, ratio=ratio)) for rule, ratio in runs
        ]

    def served(self, store: RunStore, rule: str, ratio: float) -> list[Row]:
        """One simulation; times in seconds."""
        config, dram_gib = self.ruled(store, rule, ratio)
        row = {"rule": rule, "live_over_dram": ratio, "dram_gib": dram_gib}
        return [{**row, **measures(store.measured(config))}]

    def ruled(self, store: RunStore, rule: str, ratio: float) -> tuple[RunConfig, float]:
        """The config of a run, and the GiB of its tier."""
        if rule == NO_TIER:
            return self.config(store, self.no_tier), 0.0
        dram_gib = self.live_gib(store) / ratio
        return self.config(store, (*self.tier, *self.rules[rule]), {"server.tiers.dram.size_gib": dram_gib}), dram_gib

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        curves = compared(table)
        places = curves["live_over_dram"].map("live set over DRAM {:g}".format)
        slower = curves.pivot_table(index="live_over_dram", columns="rule", values="slower_s")
        first, last = slower.iloc[0], slower.iloc[-1]
        claims = {
            "eager storing helps where the tier is large": first[EAGER] < 0,
            "eager storing hurts where the tier is small": last[EAGER] > 0,
            "storing before eviction helps more, or hurts less, at every size": (slower[AWARE] < slower[EAGER]).all(),
        }
        found = reported(self.name, curves, places, "rule", COLUMNS)
        return [*found, *(Finding(self.name, "LMCache PR 4499", AWARE, claim, "yes" if holds else "no")
                          for claim, holds in claims.items())]  # fmt: skip


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """The rows with a tier, with their mean latency beyond that of the run without one."""
    alone = table[table["rule"] == NO_TIER].iloc[0]
    return table[table["rule"] != NO_TIER].assign(slower_s=lambda rows: rows["mean_e2e_s"] - alone["mean_e2e_s"])
