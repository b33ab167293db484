"""Prefix caches under a closed loop of agentic sessions: what each eviction order finds, and what its users wait."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from experiments.paper.studies.study import Finding, Row, Study, Task
from experiments.runs.lab import Lab, composed
from experiments.runs.make import make
from testbed.core.errors import InputError
from testbed.core.specs import GIB

TRACE = "agent_sessions"


class AgentSessions(Study):
    """One run for each eviction order and pool size; a pool is a cache: free, held and parked blocks together.

    The loop is closed, so a slower cache also slows its own arrivals: latency is the measure, not throughput.
    """

    def __init__(
        self,
        name: str,
        covers: Sequence[str],
        drawing: str,
        common: Sequence[str],
        orders: Sequence[str],
        pool_blocks: Sequence[int],
    ) -> None:
        super().__init__(name, covers, drawing)
        self.common = tuple(common)
        self.orders = tuple(orders)
        self.pool_blocks = tuple(pool_blocks)

    def tasks(self, num_seeds: int | None) -> list[Task]:
        points = [(blocks, order) for blocks in self.pool_blocks for order in self.orders]
        return [
            Task(f"{self.name} {order}, {blocks} blocks", partial(self.point, order=order, num_blocks=blocks))
            for blocks, order in points
        ]

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        """At each size the order with the lowest mean time to first token, oracles aside, and how LRU compares."""
        found = []
        for blocks, rows in table[table["order"] != "belady"].groupby("num_blocks"):
            best = rows.loc[rows["mean_ttft_s"].idxmin()]
            found += [
                Finding(self.name, f"{blocks} blocks", str(row["order"]), quantity, float(row[column]))
                for row in (best, *(rows.loc[i] for i in rows.index[rows["order"] == "lru"] if i != best.name))
                for quantity, column in (("mean time to first token (s)", "mean_ttft_s"), ("tokens found", "hit_rate"))
            ]
        return found

    def point(self, lab: Lab, order: str, num_blocks: int) -> list[Row]:
        """One simulation."""
        files = dict(lab.lengths)
        if TRACE not in files:
            raise InputError(
                f"{self.name} replays recorded sessions: give --lengths {TRACE}=FILE, in the format of "
                "github.com/callanjfox/kv-cache-tester, one session a line"
            )
        config = composed("run", (*self.common, f"eviction@policy.eviction={order}")).copy()
        model, block_size = make(config.model), int(config.policy.block_size)
        pool_gib = (num_blocks * block_size + 1) * model.kv_bytes_per_token / GIB
        OmegaConf.update(config, "server.kv_memory_gib", {model.name: pool_gib}, force_add=True)
        OmegaConf.update(config, "trace.path", files[TRACE])
        summary, run = lab.measured(config)
        return [{"order": order, "num_blocks": num_blocks, "block_size": block_size, **measures(summary), "run": run}]


def measures(summary: Mapping[str, Any]) -> Row:
    """What a run is judged by; times in seconds, hit_rate as the share of prompt tokens that were found."""
    counts, ttft = summary["counters"], summary["ttft_s"]
    return {
        "hit_rate": counts["hit_tokens"] / counts["tokens"],
        "mean_ttft_s": ttft["mean"],
        "p50_ttft_s": ttft["p50"],
        "p90_ttft_s": ttft["p90"],
        "mean_tpot_s": summary["tpot_s"]["mean"],
        "simulated_s": summary["simulated_s"],
        "requests": summary["requests"]["finished"],
        "evictions": counts["evictions"],
    }
