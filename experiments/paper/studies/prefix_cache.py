"""Prefix caches beyond the paper: hit rate, throughput and latency against cache size, for every eviction order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd

from testbed.config import RunConfig
from testbed.core.specs import GIB
from testbed.experiments.paper.studies.open_sessions import SESSIONS, measures, sessions_file
from testbed.experiments.paper.studies.study import Finding, Row, Study, Task
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.run_store import Measured, RunStore
from testbed.memory.prefix_cache.replay import prompts_of, replay
from testbed.workload import make_workload

BELADY = "belady"


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

    def simulate(self, store: RunStore, config: RunConfig, num_blocks: int) -> Measured:
        """One simulation with a pool of so many blocks."""
        pool_bytes = (num_blocks * block_size(config) + 1) * config.model.kv_bytes_per_token
        pools = {config.model.name: pool_bytes / GIB}
        return store.measured(replace(config, server=replace(config.server, kv_memory_gib=pools)))


def block_size(config: RunConfig) -> int:
    """Tokens of the policy's blocks."""
    return int(config.policy.parameters["block_size"])


@dataclass(kw_only=True)
class PrefixCache(EvictionOrders):
    """Hit rates come from the untimed replay, where Belady's order is a bound; throughput comes from timed runs.

    All requests of the trace arrive by its own clock and are served to the end, so throughput is their number over the
    time that this takes. `traces` says what to do by name of trace: the one whose file is given, else the last.
    """

    traces: Mapping[str, Mapping[str, Any]]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        steps = max(len(trace["timed_blocks"]) for trace in self.traces.values())
        timed = [(f"timed {i}", partial(self.timed, order=o, step=i)) for i in range(steps) for o in self.orders]
        replays = [("replay", partial(self.replayed, order=order)) for order in self.orders]
        return [Task(f"{self.name} {work.keywords['order']}, {what}", work) for what, work in [*timed, *replays]]

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        curves = table[table["kind"] == "replay"].pivot_table(index="num_blocks", columns="order", values="hit_rate")
        ahead = (curves.sub(curves[BELADY], axis=0) > 0).any()
        place = self.name, str(table["trace"].iloc[0])
        rates = [Finding(*place, order, "largest hit rate (%)", 100 * curves[order].max()) for order in curves.columns]
        bound = Finding(*place, BELADY, "no order beats it at any size", "yes" if not ahead.any() else "no")
        return [*rates, bound]

    def replayed(self, store: RunStore, order: str) -> list[Row]:
        """The curve of one order in untimed replay."""
        trace = self._trace(store)
        config = self.config(store, trace, order, self.traces[trace]["overrides"])
        rows, size = make_workload(config).rows, block_size(config)
        prompts = list(prompts_of(rows, size))
        table = []
        for num_blocks in self.traces[trace]["replay_blocks"]:
            result = replay(prompts, num_blocks, config.policy.parameters["eviction"].make("eviction"))
            tokens = sum(result.hits) * size / rows.prompt_len.sum()
            found = {"hit_rate": result.hit_rate, "token_hit_rate": tokens, "evictions": result.evictions}
            table.append({**place(trace, "replay", order, num_blocks, size), **found})
        return table

    def timed(self, store: RunStore, order: str, step: int) -> list[Row]:
        """One simulation, with the pool as large as the cache."""
        trace = self._trace(store)
        sizes = self.traces[trace]["timed_blocks"]
        if step >= len(sizes):
            return []
        config = self.config(store, trace, order, self.traces[trace]["overrides"])
        summary, run = self.simulate(store, config, sizes[step])
        counts = summary["counters"]
        found = {
            "hit_rate": counts["hit_blocks"] / counts["blocks"],
            "token_hit_rate": counts["hit_tokens"] / counts["tokens"],
            "evictions": counts["evictions"],
            "requests_per_s": summary["throughput"]["requests_per_s"],
            "mean_ttft_s": summary["ttft_s"]["mean"],
            "run": run,
        }
        return [{**place(trace, "timed", order, sizes[step], block_size(config)), **found}]

    def _trace(self, store: RunStore) -> str:
        files = dict(store.lengths)
        return next((name for name in self.traces if name in files), list(self.traces)[-1])


def place(trace: str, kind: str, order: str, num_blocks: int, block_size: int) -> Row:
    """Which point a row is of."""
    return {"trace": trace, "kind": kind, "order": order, "num_blocks": num_blocks, "block_size": block_size}


@dataclass(kw_only=True)
class AgentSessions(EvictionOrders):
    """A closed loop of agentic sessions: what each eviction order finds, and what its users wait.

    A slower cache also slows its own arrivals, so latency is the measure, not throughput.
    """

    pool_blocks: Sequence[int]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return [
            Task(f"{self.name} {order}, {blocks} blocks", partial(self.served, order=order, num_blocks=blocks))
            for blocks in self.pool_blocks
            for order in self.orders
        ]

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        """At each size the order with the lowest mean time to first token, oracles aside, and how LRU compares."""
        found = []
        for blocks, rows in table[table["order"] != BELADY].groupby("num_blocks"):
            best = rows.loc[rows["mean_ttft_s"].idxmin()]
            found += [
                Finding(self.name, f"{blocks} blocks", str(row["order"]), quantity, float(row[column]))
                for row in (best, *(rows.loc[i] for i in rows.index[rows["order"] == "lru"] if i != best.name))
                for quantity, column in (("mean time to first token (s)", "mean_ttft_s"), ("tokens found", "hit_rate"))
            ]
        return found

    def served(self, store: RunStore, order: str, num_blocks: int) -> list[Row]:
        """One simulation; times in seconds, hit_rate as the share of prompt tokens that were found."""
        sessions_file(self.name, store)
        config = self.config(store, SESSIONS, order)
        measured = self.simulate(store, config, num_blocks)
        counts, place = measured.summary["counters"], {"order": order, "num_blocks": num_blocks}
        found = {"hit_rate": counts["hit_tokens"] / counts["tokens"], "evictions": counts["evictions"]}
        return [{**place, "block_size": block_size(config), **found, **measures(measured)}]
