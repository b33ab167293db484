"""Prefix caches beyond the paper: eviction orders, sizes and tiers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from testbed.core.specs import GIB
from testbed.experiments.paper.studies.open_sessions import SESSIONS, measures
from testbed.experiments.paper.studies.study import Finding, Row, Study, Task, reported
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.run_store import RunStore
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.replay import prompts_of, replay
from testbed.run.config import RunConfig
from testbed.run.machine import block_size_of, make_pool
from testbed.run.oracles import future_read
from testbed.run.workload import make_workload

BELADY = "belady"
SESSION_COLUMNS = {"mean_ttft_s": "mean time to first token (s)", "hit_rate": "tokens found"}
ALL_TIERS = "replay"
REPLAYS = ALL_TIERS, "replay of the DRAM alone"
TIER_COLUMNS = {"found_percent": "blocks found (%)", "mean_ttft_s": "mean time to first token (s)"}


@dataclass(kw_only=True)
class EvictionOrders(Study):
    """One run for each eviction order and pool size."""

    orders: Sequence[str]

    def config(self, order: str, path: str | None, overrides: Sequence[str] = ()) -> RunConfig:
        """The config of runs with this order; path: a file for the trace."""
        words = (*self.common, *overrides, f"eviction@policy.eviction={order}")
        return configured(words, {"trace.path": path} if path else None)


def block_size(config: RunConfig) -> int:
    """Tokens of the policy's blocks."""
    size = block_size_of(config.policy)
    assert size is not None, "a policy with a prefix cache has blocks"
    return size


@dataclass(kw_only=True)
class PrefixCache(EvictionOrders):
    """Untimed replays of one trace, for which Belady's order is a bound.

    traces: options by name; the trace whose file the user gave is replayed, else the last one.
    """

    traces: Mapping[str, Mapping[str, Any]]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return self.each("{study.name} {order}", self.replayed, order=self.orders)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        curves = table.pivot_table(index="num_blocks", columns="order", values="hit_rate")
        ahead = (curves.sub(curves[BELADY], axis=0) > 0).any()
        place = self.name, str(table["trace"].iloc[0])
        rates = [
            Finding(*place, order, "largest hit rate (%)", 100 * curves[order].max())
            for order in curves.columns
        ]
        bound = Finding(
            *place, BELADY, "no order beats it at any size", "yes" if not ahead.any() else "no"
        )
        return [*rates, bound]

    def replayed(self, store: RunStore, order: str) -> list[Row]:
        """The curve of one order."""
        files = dict(store.lengths)
        trace = next((name for name in self.traces if name in files), list(self.traces)[-1])
        config = self.config(order, files.get(trace), self.traces[trace]["overrides"])
        rows, size = make_workload(config).rows, block_size(config)
        prompts, table = list(prompts_of(rows, size)), []
        for num_blocks in self.traces[trace]["replay_blocks"]:
            result = replay(
                prompts, num_blocks, config.policy.parameters["eviction"].make("eviction")
            )
            table.append(
                {
                    "trace": trace,
                    "order": order,
                    "num_blocks": num_blocks,
                    "block_size": size,
                    "hit_rate": result.hit_rate,
                    "token_hit_rate": sum(result.hits) * size / rows.prompt_len.sum(),
                    "evictions": result.evictions,
                    "future_read": future_read(policy=config.policy) or "",
                }
            )
        return table


def with_pool(config: RunConfig, num_blocks: int) -> RunConfig:
    """The config with a pool of num_blocks blocks, on GPUs that have the memory for it if the
    server's have less.
    """
    model, server = config.model, config.server
    pool_bytes = (num_blocks * block_size(config) + 1) * model.kv_bytes_per_token
    each = -(-(pool_bytes + model.weight_bytes) // server.num_gpus)
    gpu = replace(server.gpu, memory_bytes=max(server.gpu.memory_bytes, each))
    pools = {model.name: pool_bytes / GIB}
    return replace(config, server=replace(server, gpu=gpu, kv_memory_gib=pools))


@dataclass(kw_only=True)
class AgentSessions(EvictionOrders):
    """A closed loop of agentic sessions: hits and latencies by eviction order and pool size.

    A slower cache also slows its own arrivals, so latency is the measure, not throughput.
    """

    pool_blocks: Sequence[int]

    @property
    def replays(self) -> Collection[str]:
        return (SESSIONS,)

    def tasks(self, num_seeds: int | None) -> list[Task]:
        label = "{study.name} {order}, {num_blocks} blocks"
        return self.each(label, self.served, num_blocks=self.pool_blocks, order=self.orders)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        return reported(self.name, table, "{num_blocks} blocks", "{order}", SESSION_COLUMNS)

    def served(self, store: RunStore, order: str, num_blocks: int) -> list[Row]:
        """One simulation; times in seconds, hit_rate: share of the prompts' tokens."""
        config = self.config(order, self.given_files(store)[SESSIONS])
        size = block_size(config)
        measured = store.measured(with_pool(config, num_blocks))
        counts = measured.summary["counters"]
        row = {
            "order": order,
            "num_blocks": num_blocks,
            "block_size": size,
            "hit_rate": counts["hit_tokens"] / counts["tokens"],
            "evictions": counts["evictions"],
        }
        return [{**row, **measures(measured)}]


@dataclass(kw_only=True)
class Tiers(Study):
    """One run for each trace with a file, each system and each size of the tier `dram`.

    Open loops are also replayed without time on two LRU caches: as large as all tiers, and as the
    DRAM alone, since inclusive tiers copy the blocks of the GPUs. A closed loop has no fixed order
    of requests to replay. without_tier: the system of 0 GiB of DRAM.
    """

    traces: Mapping[str, Sequence[str]]
    systems: Mapping[str, Sequence[str]]
    without_tier: Sequence[str]
    dram_gib: Sequence[float]

    @property
    def replays(self) -> Collection[str]:
        return self.traces

    def tasks(self, num_seeds: int | None) -> list[Task]:
        label = "{study.name} {trace}, {system}, {gib:g} GiB"
        places: dict[str, Any] = {"trace": self.traces, "gib": self.dram_gib}
        runs = self.each(label, self.served, **places, system=self.systems)
        return runs + self.each(label, self.replayed, **places, system=REPLAYS)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        return reported(self.name, table, "{trace}, {dram_gib:g} GiB", "{system}", TIER_COLUMNS)

    def config(self, store: RunStore, trace: str, system: str, gib: float) -> RunConfig | None:
        """The config of a run; None if the user gave no file for the trace."""
        files = self.given_files(store)
        if trace not in files:
            return None
        words, values = [*self.common, *self.traces[trace]], {"trace.path": files[trace]}
        if gib == 0:
            return configured((*words, *self.without_tier), values)
        words += [*self.systems[system], "+tier@server.tiers.dram=dram"]
        return configured(words, {**values, "server.tiers.dram.size_gib": gib})

    def served(self, store: RunStore, trace: str, system: str, gib: float) -> list[Row]:
        """One simulation; times in seconds."""
        config = self.config(store, trace, system, gib)
        if config is None:
            return []
        place = {"trace": trace, "system": system, "dram_gib": gib}
        return [place | measures(store.measured(config))]

    def replayed(self, store: RunStore, trace: str, system: str, gib: float) -> list[Row]:
        """The hit rate of one LRU cache, without a clock."""
        config = self.config(store, trace, next(iter(self.systems)), gib)
        if config is None or (rows := make_workload(config).rows).turns is not None:
            return []
        size = block_size(config)
        on_device = make_pool(config).num_slots if system == ALL_TIERS else 0
        num_blocks = (on_device + int(gib * GIB) // config.model.kv_bytes_per_token) // size
        hit_rate = 0.0
        if num_blocks:
            hit_rate = replay(prompts_of(rows, size), num_blocks, Lru()).hit_rate
        return [
            {"trace": trace, "system": system, "dram_gib": gib, "found_percent": 100 * hit_rate}
        ]
