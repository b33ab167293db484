"""Prefix caches over several tiers: what they find and what users wait, by the size of the memory below the GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd

from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.core.specs import GIB
from testbed.experiments.paper.studies.open_sessions import measures
from testbed.experiments.paper.studies.prefix_cache import block_size
from testbed.experiments.paper.studies.study import Finding, Row, Study, Task
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.run_store import RunStore
from testbed.machine import make_pool
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.replay import prompts_of, replay
from testbed.workload import make_workload

REPLAY = "replay"


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
        places = [(trace, gib) for trace in self.traces for gib in self.dram_gib]
        timed = [
            Task(
                f"{self.name} {trace}, {system}, {gib:g} GiB", partial(self.served, trace=trace, system=system, gib=gib)
            )
            for trace, gib in places
            for system in self.systems
        ]
        return timed + [
            Task(f"{self.name} {trace}, replay, {gib:g} GiB", partial(self.replayed, trace=trace, gib=gib))
            for trace, gib in places
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
        files = dict(store.lengths)
        if not set(self.traces) & set(files):
            names = " or ".join(f"--lengths {name}=FILE" for name in self.traces)
            raise InputError(f"{self.name}: replays public traces, which are not part of the testbed (give {names})")
        if trace not in files:
            return None
        words = (*self.common, *self.traces[trace], *self.systems[system], "+tier@server.tiers.dram=dram")
        return configured(words, {"trace.path": files[trace], "server.tiers.dram.size_gib": gib})

    def served(self, store: RunStore, trace: str, system: str, gib: float) -> list[Row]:
        """One simulation; times in seconds."""
        config = self.config(store, trace, system, gib)
        if config is None:
            return []
        return [{"trace": trace, "system": system, "dram_gib": gib, **measures(store.measured(config))}]

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
