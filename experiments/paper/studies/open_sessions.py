"""Closed loops of recorded sessions in too little memory: store rules and times to live."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import pandas as pd

from testbed.core.specs import GIB
from testbed.experiments.paper.studies.study import Finding, Row, Study, Task, reported
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.run_store import Measured, RunStore
from testbed.run.config import RunConfig
from testbed.run.sessions import sessions
from testbed.run.workload import make_workload

SESSIONS = "agent_sessions"
NO_TIER = "no tier"
EAGER, AWARE = "write through", "before eviction"
RULE_COLUMNS = {
    "found_percent": "blocks found (%)",
    "slower_s": "mean latency beyond that without a tier (s)",
}
TIME_TO_LIVE = "time to live"
LIFE_COLUMNS = {"mean_job_s": "mean job time (s)", "found_percent": "blocks found (%)"}


@dataclass(kw_only=True)
class OpenSessions(Study):
    """Sessions on a pool of device_share of their live set.

    The live set is the memory that the open sessions need: the mean prompt of all requests, times
    the number of sessions at once.
    """

    device_share: float

    @property
    def replays(self) -> Collection[str]:
        return (SESSIONS,)

    def config(self, store: RunStore, words: Sequence[str]) -> tuple[RunConfig, float]:
        """The config of a run with these words, and the GiB of its live set."""
        path = self.given_files(store)[SESSIONS]
        config = configured((*self.common, *words), {"trace.path": path})
        mean_prompt = float(make_workload(config).rows.prompt_len.mean())
        at_once = int(config.arrivals.parameters["at_once"])
        live_gib = at_once * mean_prompt * config.model.kv_bytes_per_token / GIB
        pools = {config.model.name: self.device_share * live_gib}
        return replace(config, server=replace(config.server, kv_memory_gib=pools)), live_gib


def measures(measured: Measured) -> Row:
    """The hit rate, latencies (s), counts and moved blocks of a run."""
    summary, run = measured
    counts = summary["counters"]
    latencies = product(("ttft_s", "tpot_s", "e2e_s"), ("mean", "p50", "p90"))
    moved = ("loaded_blocks", "stored_blocks", "written_blocks")
    return {
        "found_percent": 100 * counts["hit_blocks"] / counts["blocks"],
        **{f"{measure}_{name}": summary[name][measure] for name, measure in latencies},
        "simulated_s": summary["simulated_s"],
        "requests": summary["requests"]["finished"],
        "recomputes": summary["preemptions"]["recompute"],
        **{name: counts.get(name, 0) for name in moved},
        "run": run,
    }


@dataclass(kw_only=True)
class StoreRules(OpenSessions):
    """A closed loop of agent sessions: without a tier, and for each store rule and tier size.

    live_over_dram: the live set in units of the tier, for each size.
    """

    live_over_dram: Sequence[float]
    no_tier: Sequence[str]
    tier: Sequence[str]
    rules: Mapping[str, Sequence[str]]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        label = "{study.name} {rule}, {ratio:g}"
        alone = self.each(label, self.served, ratio=[0.0], rule=[NO_TIER])
        return alone + self.each(label, self.served, ratio=self.live_over_dram, rule=self.rules)

    def served(self, store: RunStore, rule: str, ratio: float) -> list[Row]:
        """One simulation; times in seconds."""
        config, dram_gib = self.ruled(store, rule, ratio)
        row = {"rule": rule, "live_over_dram": ratio, "dram_gib": dram_gib}
        return [{**row, **measures(store.measured(config))}]

    def ruled(self, store: RunStore, rule: str, ratio: float) -> tuple[RunConfig, float]:
        """The config of a run, and the GiB of its tier."""
        if rule == NO_TIER:
            return self.config(store, self.no_tier)[0], 0.0
        config, live_gib = self.config(store, (*self.tier, *self.rules[rule]))
        tiers = {
            name: replace(tier, size_gib=live_gib / ratio)
            for name, tier in (config.server.tiers or {}).items()
        }
        return replace(config, server=replace(config.server, tiers=tiers)), live_gib / ratio

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        curves = compared(table).query("rule != @NO_TIER")
        slower = curves.pivot_table(index="live_over_dram", columns="rule", values="slower_s")
        first, last = slower.iloc[0], slower.iloc[-1]
        claims = {
            "eager storing helps if the tier is large": first[EAGER] < 0,
            "eager storing hurts if the tier is small": last[EAGER] > 0,
            "storing before eviction helps more, or hurts less, at every size": (
                slower[AWARE] < slower[EAGER]
            ).all(),
        }
        findings = reported(
            self.name, curves, "live set over DRAM {live_over_dram:g}", "{rule}", RULE_COLUMNS
        )
        return [
            *findings,
            *(
                Finding(
                    figure=self.name,
                    setting="LMCache PR 4499",
                    system=AWARE,
                    quantity=claim,
                    simulated="yes" if holds else "no",
                )
                for claim, holds in claims.items()
            ),
        ]


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """The table with slower_s, the mean latency beyond that of the run without a tier."""
    alone = table[table["rule"] == NO_TIER].iloc[0]
    return table.assign(slower_s=table["mean_e2e_s"] - alone["mean_e2e_s"])


@dataclass(kw_only=True)
class TimeToLive(OpenSessions):
    """One run for each time to live, and one for each of the other systems.

    A job is a session, from the arrival of its first request to its last answer.
    """

    times_s: Sequence[float]
    systems: Mapping[str, Sequence[str]]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        kept = self.each(
            "{study.name} {system} {time_s}",
            self.served,
            system=[TIME_TO_LIVE],
            time_s=self.times_s,
        )
        return kept + self.each(
            "{study.name} {system} ", self.served, system=self.systems, time_s=[None]
        )

    def served(self, store: RunStore, system: str, time_s: float | None) -> list[Row]:
        """One simulation; times in seconds."""
        order = ("scheduler=chunked", "order=time_to_live")
        lives = (*order, f"scheduler.order.time_to_live_s={time_s}")
        config, _ = self.config(store, self.systems[system] if time_s is None else lives)
        row = measures(store.measured(config))
        requests = pd.read_csv(store.folder / row["run"] / "requests.csv")
        jobs = sessions(requests, requests.set_index("request_id")["session"])
        jobs_s = jobs["end_s"] - jobs["start_s"]
        times = {"mean_job_s": jobs_s.mean(), "p90_job_s": jobs_s.quantile(0.9)}
        return [{"system": system, "time_to_live_s": time_s, **times, **row}]

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        findings = reported(self.name, table, "{time_to_live_s:g} s", "{system}", LIFE_COLUMNS)
        return [
            finding._replace(setting=finding.setting.removeprefix("nan s")) for finding in findings
        ]
