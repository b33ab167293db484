"""Prefix caches over several tiers: what they find and what users wait, by the size of the memory below the GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import pandas as pd

from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.core.specs import GIB
from testbed.experiments.paper.studies.open_sessions import measures, reported
from testbed.experiments.paper.studies.prefix_cache import block_size
from testbed.experiments.paper.studies.study import Finding, Row, Study, Task
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.run_store import RunStore
from testbed.machine import make_pool
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.replay import prompts_of, replay
from testbed.workload import make_workload

REPLAY = "replay"
COLUMNS = {"found_percent": "blocks found (%)", "mean_ttft_s": "mean time to first token (s)"}


@dataclass(kw_only=True)
class Tiers(Study):
    """One run for each trace whose file is given, each system and each size of the tier `dram`.

    Next to open loops is an untimed replay of an LRU cache as large as all tiers together: a closed loop has no
    order of its own to replay.
    """

    common: Sequence[str]
    traces: Mapping[str, Sequence[str]]
    systems: Mapping[str, Sequence[str]]
    dram_gib: Sequence[float]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return [
            Task(f"{self.name} {trace}, {system}, {gib:g} GiB", partial(work, trace=trace, system=system, gib=gib))
            for work, systems in ((self.served, self.systems), (self.replayed, [REPLAY]))
            for trace, gib, system in product(self.traces, self.dram_gib, systems)
        ]

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        places = table["trace"] + table["dram_gib"].map(", {:g} GiB".format)
        return reported(self.name, table, places, "system", COLUMNS)

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

    def replayed(self, store: RunStore, trace: str, system: str, gib: float) -> list[Row]:
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
        return [{"trace": trace, "system": system, "dram_gib": gib, "found_percent": 100 * found}]
