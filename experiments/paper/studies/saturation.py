"""Memory and throughput of a system under as many requests as it may hold (Figure 1, right)."""

from collections.abc import Mapping, Sequence
from functools import partial

import pandas as pd

from experiments.paper.studies.study import Finding, Row, Study, Task
from experiments.runs.lab import Lab
from experiments.runs.machine import make_machine
from testbed.core.specs import GIB


class Saturation(Study):
    """One run for each system and limit; a system that cannot hold as many stops growing."""

    def __init__(
        self,
        name: str,
        covers: Sequence[str],
        drawing: str,
        common: Sequence[str],
        systems: Mapping[str, str],
        batch_sizes: Sequence[int],
    ) -> None:
        super().__init__(name, covers, drawing)
        self.common = tuple(common)
        self.systems = systems
        self.batch_sizes = batch_sizes

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return [
            Task(f"fig1 {label}, batch of {size}", partial(saturate, label=label, system=system, study=self, size=size))
            for label, system in self.systems.items()
            for size in self.batch_sizes
        ]

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        return []


def saturate(lab: Lab, label: str, system: str, study: Saturation, size: int) -> list[Row]:
    """Memory in GiB, weights included, and output tokens per second."""
    overrides = (f"+system={system}", *study.common)
    summary, run = lab.measure(overrides, {"scheduler.max_num_seqs": size})
    config = lab.config(overrides)
    model, server = make_machine(config)
    shares = summary["memory"]
    used = sum(shares[kind]["over_time"] for kind in ("token_states", "reserved", "internal"))
    row = {
        "system": label,
        "limit": size,
        "batch": summary["batch"]["mean_over_time"],
        "parameters_gib": model.weight_bytes / GIB,
        "memory_gib": (model.weight_bytes + used * server.kv_pool_bytes(model)) / GIB,
        "tokens_per_s": summary["throughput"]["output_tokens_per_s"],
        "run": run,
    }
    return [row]
