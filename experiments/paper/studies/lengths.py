"""Distributions of prompt and output lengths (Figure 11)."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd

from experiments.paper.studies.study import Finding, Row, Study, Task
from experiments.runs.lab import Lab
from experiments.runs.make import make
from testbed.core.request import Column
from traces.reader import FileTrace


class Lengths(Study):
    """Histograms and means; no simulation."""

    def __init__(
        self,
        name: str,
        covers: Sequence[str],
        drawing: str,
        traces: Sequence[str],
        num_rows: int,
        bins: Mapping[str, Sequence[int]],
    ) -> None:
        super().__init__(name, covers, drawing)
        self.traces = traces
        self.num_rows = num_rows
        self.bins = bins

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return [Task(f"fig11 {name}", partial(histogram, trace=name, study=self)) for name in self.traces]

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        means = table[table["quantity"].str.startswith("mean")]
        return [Finding("fig11", row.setting, "", row.quantity, row.simulated) for row in means.itertuples()]


def histogram(lab: Lab, trace: str, study: Lengths) -> list[Row]:
    """Mean and densities of inputs and outputs below 2048 tokens in all."""
    config = lab.config([f"trace={trace}"])
    source = make(config.trace)
    rows = source.rows(None if isinstance(source, FileTrace) else study.num_rows, 0, config.workload.max_len)
    edges = np.arange(study.bins[trace][0], study.bins[trace][1] + 1, study.bins[trace][2])
    return [
        row
        for side, lengths in (("input", rows.prompt_len), ("output", rows.output_len))
        for row in _side(trace, side, lengths, edges)
    ]


def _side(trace: str, side: str, lengths: Column, edges: Column) -> list[Row]:
    base = {"figure": "fig11", "setting": trace}
    counts, _ = np.histogram(lengths, edges)
    densities = counts / len(lengths) / np.diff(edges)
    bars = zip(edges[:-1].tolist(), edges[1:].tolist(), densities.tolist(), strict=True)
    return [
        {**base, "quantity": f"mean_{side}", "simulated": float(lengths.mean())},
        *({**base, "quantity": side, "from": start, "to": end, "simulated": d} for start, end, d in bars),
    ]
