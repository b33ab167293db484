"""Prefix caches over several tiers: what they find and what users wait, by the size of the memory below the GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from testbed.config import RunConfig
from testbed.core.specs import GIB
from testbed.experiments.paper.studies.prefix_cache import block_size
from testbed.experiments.paper.studies.study import Finding, Row, Study, Task, numbers_of
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.run_store import RunStore
from testbed.machine import make_pool
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.replay import prompts_of, replay
from testbed.workload import make_workload

REPLAY = "replay"
MOVED_BLOCKS = ("loaded_blocks", "stored_blocks", "written_blocks")


@dataclass(kw_only=True)
class Tiers(Study):
    """One run for each trace whose file is given, each system and each size of the tier `dram`.

    Beside open loops stands an untimed replay of an LRU cache as large as all tiers together: a closed loop has no
    order of its own to replay.
    """

    common: Sequence[str]
    traces: Mapping[str, Sequence[str]]
    systems: Mapping[str, Sequence[str]]
    dram_gib: Sequence[float]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        axes = {"trace": self.traces, "gib": self.dram_gib}
        timed = "{study.name} {trace}, {system}, {gib:g} GiB"
        return [
            *self.each(timed, self.served, **axes, system=self.systems),
            *self.each("{study.name} {trace}, replay, {gib:g} GiB", self.replayed, **axes),
        ]

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        return [
            Finding(self.name, f"{row['trace']}, {row['dram_gib']:g} GiB", str(row["system"]), quantity, row[column])
            for row in table.to_dict("records")
            for quantity, column in (
                ("blocks found (%)", "found_percent"),
                ("mean time to first token (s)", "mean_ttft_s"),
            )
            if not pd.isna(row[column])
        ]

    def config(self, store: RunStore, trace: str, system: str, gib: float) -> RunConfig | None:
        """The config of a run, None where the trace's file is not given."""
        files = self.given_files(store, self.traces)
        if trace not in files:
            return None
        words = (*self.common, *self.traces[trace], *self.systems[system], "+tier@server.tiers.dram=dram")
        return configured(words, {"trace.path": files[trace], "server.tiers.dram.size_gib": gib})

    def served(self, store: RunStore, trace: str, system: str, gib: float) -> list[Row]:
        """One simulation; times in seconds."""
        config = self.config(store, trace, system, gib)
        if config is None:
            return []
        summary, run = store.measured(config)
        counts = summary["counters"]
        place = {"trace": trace, "system": system, "dram_gib": gib,
                 "found_percent": 100 * counts["hit_blocks"] / counts["blocks"]}  # fmt: skip
        found = numbers_of(
            summary, mean_ttft_s="ttft_s.mean", p90_ttft_s="ttft_s.p90", mean_tpot_s="tpot_s.mean",
            simulated_s="simulated_s", recomputes="preemptions.recompute",
            **{name: f"counters.{name}" for name in MOVED_BLOCKS},
        )  # fmt: skip
        return [{**place, **found, "run": run}]

    def replayed(self, store: RunStore, trace: str, gib: float) -> list[Row]:
        """What one LRU cache of all tiers' size finds, without a clock."""
        config = self.config(store, trace, next(iter(self.systems)), gib)
        if config is None:
            return []
        rows, size = make_workload(config).rows, block_size(config)
        if rows.turns is not None:
            return []
        pool = make_pool(config)
        num_blocks = (pool.num_slots + int(gib * GIB) // config.model.kv_bytes_per_token) // size
        found = replay(prompts_of(rows, size), num_blocks, Lru()).hit_rate
        return [{"trace": trace, "system": REPLAY, "dram_gib": gib, "found_percent": 100 * found}]
