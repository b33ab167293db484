"""Prefix caches beyond the paper: hit rate and latency against cache size, for every eviction order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from testbed.config import RunConfig
from testbed.core.specs import GIB
from testbed.experiments.paper.studies.open_sessions import SESSIONS, measures, reported
from testbed.experiments.paper.studies.study import Finding, Row, Study, Task
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.run_store import RunStore
from testbed.memory.prefix_cache.replay import prompts_of, replay
from testbed.workload import make_workload

BELADY = "belady"
COLUMNS = {"mean_ttft_s": "mean time to first token (s)", "hit_rate": "tokens found"}


@dataclass(kw_only=True)
class EvictionOrders(Study):
    """One run for each eviction order and pool size; a pool is a cache: free, used and cached blocks together."""

    common: Sequence[str]
    orders: Sequence[str]

    def config(self, store: RunStore, trace: str, order: str, overrides: Sequence[str] = ()) -> RunConfig:
        """The config of runs with this order, on the trace's file where one was given."""
        path = dict(store.lengths).get(trace)
        words = (*self.common, *overrides, f"eviction@policy.eviction={order}")
        return configured(words, {"trace.path": path} if path else None)


def block_size(config: RunConfig) -> int:
    """Tokens of the policy's blocks."""
    return int(config.policy.parameters["block_size"])


@dataclass(kw_only=True)
class PrefixCache(EvictionOrders):
    """Untimed replay, where Belady's order is a bound.

    `traces` says what to do by name of trace: the one whose file is given, else the last.
    """

    traces: Mapping[str, Mapping[str, Any]]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return self.each("{study.name} {order}", self.replayed, order=self.orders)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        curves = table.pivot_table(index="num_blocks", columns="order", values="hit_rate")
        ahead = (curves.sub(curves[BELADY], axis=0) > 0).any()
        place = self.name, str(table["trace"].iloc[0])
        rates = [Finding(*place, order, "largest hit rate (%)", 100 * curves[order].max()) for order in curves.columns]
        bound = Finding(*place, BELADY, "no order beats it at any size", "yes" if not ahead.any() else "no")
        return [*rates, bound]

    def replayed(self, store: RunStore, order: str) -> list[Row]:
        """The curve of one order."""
        trace = next((name for name in self.traces if name in dict(store.lengths)), list(self.traces)[-1])
        config = self.config(store, trace, order, self.traces[trace]["overrides"])
        rows, size = make_workload(config).rows, block_size(config)
        prompts = list(prompts_of(rows, size))
        table = []
        for num_blocks in self.traces[trace]["replay_blocks"]:
            result = replay(prompts, num_blocks, config.policy.parameters["eviction"].make("eviction"))
            tokens = sum(result.hits) * size / rows.prompt_len.sum()
            found = {"hit_rate": result.hit_rate, "token_hit_rate": tokens, "evictions": result.evictions}
            table.append({"trace": trace, "order": order, "num_blocks": num_blocks, "block_size": size, **found})
        return table


@dataclass(kw_only=True)
class AgentSessions(EvictionOrders):
    """A closed loop of agentic sessions: what each eviction order finds, and what its users wait.

    A slower cache also slows its own arrivals, so latency is the measure, not throughput.
    """

    pool_blocks: Sequence[int]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        label = "{study.name} {order}, {num_blocks} blocks"
        return self.each(label, self.served, num_blocks=self.pool_blocks, order=self.orders)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        return reported(self.name, table, table["num_blocks"].map("{} blocks".format), "order", COLUMNS)

    def served(self, store: RunStore, order: str, num_blocks: int) -> list[Row]:
        """One simulation; times in seconds, hit_rate as the share of prompt tokens that were found."""
        self.given_files(store, [SESSIONS])
        config = self.config(store, SESSIONS, order)
        pool_bytes = (num_blocks * block_size(config) + 1) * config.model.kv_bytes_per_token
        pools = {config.model.name: pool_bytes / GIB}
        measured = store.measured(replace(config, server=replace(config.server, kv_memory_gib=pools)))
        counts, place = measured.summary["counters"], {"order": order, "num_blocks": num_blocks}
        found = {"hit_rate": counts["hit_tokens"] / counts["tokens"], "evictions": counts["evictions"]}
        return [{**place, "block_size": block_size(config), **found, **measures(measured)}]
