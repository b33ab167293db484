"""Closed loops of recorded sessions on a pool that is a share of what the open ones need."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pandas as pd

from testbed.config import RunConfig
from testbed.core.specs import GIB
from testbed.experiments.paper.studies.study import Finding, Row, Study
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.run_store import Measured, RunStore
from testbed.workload import make_workload

SESSIONS = "agent_sessions"


@dataclass(kw_only=True)
class OpenSessions(Study):
    """What the open sessions need is the mean prompt of all requests, times the sessions at once.

    The pool on the GPUs is device_share of that.
    """

    common: Sequence[str]
    device_share: float

    def config(self, store: RunStore, words: Sequence[str], values: Mapping[str, Any] | None = None) -> RunConfig:
        """The config of a run with these words more."""
        config = self._configured(store, words, values or {})
        pools = {config.model.name: self.device_share * self.live_gib(store)}
        return replace(config, server=replace(config.server, kv_memory_gib=pools))

    def live_gib(self, store: RunStore) -> float:
        """What the open sessions need, in GiB."""
        config = self._configured(store, ["policy=prefix_caching"], {})
        mean = float(make_workload(config).rows.prompt_len.mean())
        return int(config.arrivals.parameters["at_once"]) * mean * config.model.kv_bytes_per_token / GIB

    def _configured(self, store: RunStore, words: Sequence[str], values: Mapping[str, Any]) -> RunConfig:
        path = self.given_files(store, [SESSIONS])[SESSIONS]
        return configured((*self.common, *words), {"trace.path": path, **values})


def reported(
    figure: str, table: pd.DataFrame, places: Iterable[str], system: str, columns: Mapping[str, str]
) -> list[Finding]:
    """Some columns of a table as findings of these quantities; `places` has a text for each row."""
    return [
        Finding(figure, place, str(row[system]), quantity, row[column])
        for place, row in zip(places, table.to_dict("records"), strict=True)
        for column, quantity in columns.items()
        if not pd.isna(row[column])
    ]


def measures(measured: Measured) -> Row:
    """What the cache of a run found and moved, and what its users waited, in seconds."""
    summary, run = measured
    counts, waits = summary["counters"], product(("ttft_s", "tpot_s", "e2e_s"), ("mean", "p50", "p90"))
    return {
        "found_percent": 100 * counts["hit_blocks"] / counts["blocks"],
        **{f"{which}_{name}": summary[name][which] for name, which in waits},
        "simulated_s": summary["simulated_s"],
        "requests": summary["requests"]["finished"],
        "recomputes": summary["preemptions"]["recompute"],
        **{name: counts.get(name, 0) for name in ("loaded_blocks", "stored_blocks", "written_blocks")},
        "run": run,
    }
