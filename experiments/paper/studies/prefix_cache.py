"""Prefix caches beyond the paper: by eviction order and size, over several tiers; transfers by
block size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pandas as pd

from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.core.slots import DEVICE
from testbed.core.specs import GIB
from testbed.cost.link_times import INTO, OUT, measured_link
from testbed.cost.model import Moved
from testbed.experiments.paper.studies.open_sessions import SESSIONS, measures
from testbed.experiments.paper.studies.study import Finding, Row, Study, Task, reported
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.run_store import RunStore
from testbed.machine import make_pool
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.replay import prompts_of, replay
from testbed.workload import make_workload

BELADY = "belady"
SESSION_COLUMNS = {"mean_ttft_s": "mean time to first token (s)", "hit_rate": "tokens found"}
REPLAYS = ALL_TIERS, DRAM_ALONE = "replay", "replay of the DRAM alone"
TIER_COLUMNS = {"found_percent": "blocks found (%)", "mean_ttft_s": "mean time to first token (s)"}
WAYS = {OUT: "to the host", INTO: "from the host"}


@dataclass(kw_only=True)
class EvictionOrders(Study):
    """One run for each eviction order and pool size; a pool is a cache: free, used and cached
    blocks together.
    """

    orders: Sequence[str]

    def config(self, order: str, path: str | None, overrides: Sequence[str] = ()) -> RunConfig:
        """The config of runs with this order, on the trace's file where one was given."""
        words = (*self.common, *overrides, f"eviction@policy.eviction={order}")
        return configured(words, {"trace.path": path} if path else None)


def block_size(config: RunConfig) -> int:
    """Tokens of the policy's blocks."""
    return int(config.policy.parameters["block_size"])


@dataclass(kw_only=True)
class PrefixCache(EvictionOrders):
    """Untimed replay, where Belady's order is a bound. `traces` says what to do by name of trace:
    the one whose file is given, else the last.
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
            tokens = sum(result.hits) * size / rows.prompt_len.sum()
            rates = {
                "hit_rate": result.hit_rate,
                "token_hit_rate": tokens,
                "evictions": result.evictions,
            }
            table.append(
                {
                    "trace": trace,
                    "order": order,
                    "num_blocks": num_blocks,
                    "block_size": size,
                    **rates,
                }
            )
        return table


@dataclass(kw_only=True)
class AgentSessions(EvictionOrders):
    """A closed loop of agentic sessions: what each eviction order finds, and what its users wait. A
    slower cache also slows its own arrivals, so latency is the measure, not throughput.
    """

    pool_blocks: Sequence[int]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        label = "{study.name} {order}, {num_blocks} blocks"
        return self.each(label, self.served, num_blocks=self.pool_blocks, order=self.orders)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        return reported(self.name, table, "{num_blocks} blocks", "{order}", SESSION_COLUMNS)

    def served(self, store: RunStore, order: str, num_blocks: int) -> list[Row]:
        """One simulation; times in seconds, hit_rate as the share of prompt tokens that were
        found.
        """
        config = self.config(order, self.given_files(store, [SESSIONS])[SESSIONS])
        size = block_size(config)
        pools = {config.model.name: (num_blocks * size + 1) * config.model.kv_bytes_per_token / GIB}
        measured = store.measured(
            replace(config, server=replace(config.server, kv_memory_gib=pools))
        )
        counts, place = (
            measured.summary["counters"],
            {"order": order, "num_blocks": num_blocks, "block_size": size},
        )
        rates = {
            "hit_rate": counts["hit_tokens"] / counts["tokens"],
            "evictions": counts["evictions"],
        }
        return [{**place, **rates, **measures(measured)}]


@dataclass(kw_only=True)
class Tiers(Study):
    """One run for each trace whose file is given, each system and each size of the tier `dram`.
    Next to open loops are untimed replays of an LRU cache as large as all tiers together, and as
    the DRAM alone, which has a copy of what the GPUs cache where the tiers are inclusive. A closed
    loop has no order of its own to replay.
    """

    traces: Mapping[str, Sequence[str]]
    systems: Mapping[str, Sequence[str]]
    dram_gib: Sequence[float]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        label, places = (
            "{study.name} {trace}, {system}, {gib:g} GiB",
            {"trace": self.traces, "gib": self.dram_gib},
        )
        runs = self.each(label, self.served, **places, system=self.systems)
        return runs + self.each(label, self.replayed, **places, system=REPLAYS)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        return reported(self.name, table, "{trace}, {dram_gib:g} GiB", "{system}", TIER_COLUMNS)

    def config(self, store: RunStore, trace: str, system: str, gib: float) -> RunConfig | None:
        """The config of a run, None where the trace's file is not given."""
        files = self.given_files(store, self.traces)
        if trace not in files:
            return None
        words = (
            *self.common,
            *self.traces[trace],
            *self.systems[system],
            "+tier@server.tiers.dram=dram",
        )
        return configured(words, {"trace.path": files[trace], "server.tiers.dram.size_gib": gib})

    def served(self, store: RunStore, trace: str, system: str, gib: float) -> list[Row]:
        """One simulation; times in seconds."""
        config, place = (
            self.config(store, trace, system, gib),
            {"trace": trace, "system": system, "dram_gib": gib},
        )
        return [] if config is None else [place | measures(store.measured(config))]

    def replayed(self, store: RunStore, trace: str, system: str, gib: float) -> list[Row]:
        """What one LRU cache finds, without a clock."""
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


@dataclass(kw_only=True)
class TransferSizes(Study):
    """num_tokens tokens in blocks that lie anywhere, on the GPU and on the host."""

    num_tokens: int
    block_sizes: Sequence[int]
    methods: Sequence[str]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return [Task(self.name, self.times)]

    def times(self, store: RunStore) -> list[Row]:
        """A row for each way, method and block size."""
        config = configured(self.common)
        link = measured_link(config.model, config.server)
        if link is None:
            raise InputError(f"{self.name}: {config.server.gpu.name} names no measured transfers")
        gigabytes = self.num_tokens * config.model.kv_bytes_per_token / config.server.num_gpus / 1e9
        rows = []
        for way, method, size in product(WAYS, self.methods, self.block_sizes):
            num_blocks = self.num_tokens // size
            seconds = link(method, way, [Moved(DEVICE, "dram", size, num_blocks, num_blocks)]) / PS
            rows.append(
                {
                    "way": WAYS[way],
                    "method": method,
                    "block_size": size,
                    "tokens": self.num_tokens,
                    "transfer_ms": 1e3 * seconds,
                    "gb_per_s": gigabytes / seconds,
                }
            )
        return rows

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        return reported(
            self.name, table, "{way}, {block_size} tokens", "{method}", {"transfer_ms": "time (ms)"}
        )
