"""Which blocks to store below the GPUs, when the open sessions need more and more of the memory there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pandas as pd

from testbed.config import RunConfig
from testbed.core.specs import GIB
from testbed.experiments.paper.studies.prefix_cache import SESSIONS
from testbed.experiments.paper.studies.study import Finding, Row, Study, Task, numbers_of
from testbed.experiments.paper.studies.tiers import MOVED_BLOCKS
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.run_store import RunStore
from testbed.workload import make_workload

NO_TIER = "no tier"
EAGER, AWARE = "write through", "before eviction"
COLUMNS = {"found_percent": "blocks found (%)", "slower_s": "mean latency beyond that without a tier (s)"}


@dataclass(kw_only=True)
class StoreRules(Study):
    """A closed loop of agent sessions, without a tier, and with each store rule and each size of the tier.

    What the open sessions need is the mean prompt of all requests, times the sessions at once. The pool on the GPUs is
    device_share of that, the tier as much as live_over_dram says.
    """

    common: Sequence[str]
    device_share: float
    live_over_dram: Sequence[float]
    no_tier: Sequence[str]
    tier: Sequence[str]
    rules: Mapping[str, Sequence[str]]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        alone = Task(f"{self.name} {NO_TIER}", partial(self.served, rule=NO_TIER, ratio=0.0))
        label = "{study.name} {rule}, {ratio:g}"
        return [alone, *self.each(label, self.served, ratio=self.live_over_dram, rule=self.rules)]

    def served(self, store: RunStore, rule: str, ratio: float) -> list[Row]:
        """One simulation; times in seconds."""
        config, dram_gib = self.config(store, rule, ratio)
        summary, run = store.measured(config)
        counts = summary["counters"]
        place = {"rule": rule, "live_over_dram": ratio, "dram_gib": dram_gib,
                 "found_percent": 100 * counts["hit_blocks"] / counts["blocks"]}  # fmt: skip
        found = numbers_of(
            summary, mean_ttft_s="ttft_s.mean", mean_e2e_s="e2e_s.mean", recomputes="preemptions.recompute"
        )
        return [{**place, **found, **{name: counts.get(name, 0) for name in MOVED_BLOCKS}, "run": run}]

    def config(self, store: RunStore, rule: str, ratio: float) -> tuple[RunConfig, float]:
        """The config of a run, and the GiB of its tier."""
        words = self.no_tier if rule == NO_TIER else (*self.tier, *self.rules[rule])
        values = {"trace.path": self.given_files(store, [SESSIONS])[SESSIONS]}
        live_gib = self.live_gib(configured((*self.common, *self.no_tier), values))
        dram_gib = live_gib / ratio if ratio else 0.0
        config = configured(
            (*self.common, *words), values | ({"server.tiers.dram.size_gib": dram_gib} if ratio else {})
        )
        pools = {config.model.name: self.device_share * live_gib}
        return replace(config, server=replace(config.server, kv_memory_gib=pools)), dram_gib

    def live_gib(self, config: RunConfig) -> float:
        """What the open sessions need, in GiB."""
        mean = float(make_workload(config).rows.prompt_len.mean())
        return int(config.arrivals.parameters["at_once"]) * mean * config.model.kv_bytes_per_token / GIB

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        curves = compared(table)
        found = [
            Finding(self.name, f"live set over DRAM {row['live_over_dram']:g}", str(row["rule"]), quantity, row[column])
            for row in curves.to_dict("records")
            for column, quantity in COLUMNS.items()
        ]
        slower = curves.pivot_table(index="live_over_dram", columns="rule", values="slower_s")
        first, last = slower.iloc[0], slower.iloc[-1]
        claims = {
            "eager storing helps where the tier is large": first[EAGER] < 0,
            "eager storing hurts where the tier is small": last[EAGER] > 0,
            "storing before eviction helps more, or hurts less, at every size": (slower[AWARE] < slower[EAGER]).all(),
        }
        return [*found, *(Finding(self.name, "LMCache PR 4499", AWARE, claim, "yes" if holds else "no")
                          for claim, holds in claims.items())]  # fmt: skip


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """The rows with a tier, with their mean latency beyond that of the run without one."""
    alone = table[table["rule"] == NO_TIER].iloc[0]
    return table[table["rule"] != NO_TIER].assign(slower_s=lambda rows: rows["mean_e2e_s"] - alone["mean_e2e_s"])
