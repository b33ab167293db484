"""What the evaluation starts from: the worth of a batch (Figure 1), lengths (Figure 11), servers (Table 1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from testbed.core.request import Column
from testbed.core.specs import GIB, ModelSpec
from testbed.experiments.paper.studies.study import Finding, Row, Study, Task
from testbed.experiments.runs.run_store import RunStore
from testbed.traces.reader import FileTrace


@dataclass(kw_only=True)
class Saturation(Study):
    """One run for each system and limit; a system whose memory does not fit as many stops growing."""

    common: Sequence[str]
    systems: Mapping[str, str]
    batch_sizes: Sequence[int]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return self.each("fig1 {label}, batch of {size}", self.saturate, label=self.systems, size=self.batch_sizes)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        return []

    def saturate(self, store: RunStore, label: str, size: int) -> list[Row]:
        """Memory in GiB, weights included, and output tokens per second."""
        overrides = (f"+system={self.systems[label]}", *self.common)
        summary, run = store.measure(overrides, {"scheduler.max_num_seqs": size})
        config = store.config(overrides)
        model, server = config.model, config.server
        used = sum(summary["memory"][kind]["over_time"] for kind in ("token_states", "reserved", "internal"))
        row = {
            "system": label,
            "limit": size,
            "batch": summary["batch"]["mean_over_time"],
            "parameters_gib": model.weight_bytes / GIB,
            "kv_memory_gib": server.kv_pool_bytes(model) / GIB,
            "gpu_memory_gib": server.num_gpus * server.gpu.memory_bytes / GIB,
            "memory_gib": (model.weight_bytes + used * server.kv_pool_bytes(model)) / GIB,
            "tokens_per_s": summary["throughput"]["output_tokens_per_s"],
            "run": run,
        }
        return [row]


@dataclass(kw_only=True)
class Lengths(Study):
    """Histograms and means; no simulation."""

    traces: Sequence[str]
    num_rows: int
    bins: Mapping[str, Sequence[int]]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return self.each("fig11 {trace}", self.histogram, trace=self.traces)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        means = table[table["quantity"].str.startswith("mean")].set_index(["setting", "quantity"])["simulated"]
        found = [Finding("fig11", setting, "", quantity, value) for (setting, quantity), value in means.items()]
        for side in ("input", "output"):
            ratio = means["sharegpt", f"mean_{side}"] / means["alpaca", f"mean_{side}"]
            found.append(Finding("fig11", "sharegpt over alpaca", "", f"mean_{side}_ratio", float(ratio)))
        return found

    def histogram(self, store: RunStore, trace: str) -> list[Row]:
        """Mean and densities of inputs and outputs below 2048 tokens in all."""
        config = store.config([f"trace={trace}"])
        source = config.trace.make("trace")
        rows = source.rows(None if isinstance(source, FileTrace) else self.num_rows, 0, config.workload.max_len)
        start, stop, width = self.bins[trace]
        edges = np.arange(start, stop + 1, width)
        return [*_side(trace, "input", rows.prompt_len, edges), *_side(trace, "output", rows.output_len, edges)]


def _side(trace: str, side: str, lengths: Column, edges: Column) -> list[Row]:
    base = {"figure": "fig11", "setting": trace}
    counts, _ = np.histogram(lengths, edges)
    densities = counts / len(lengths) / np.diff(edges)
    bars = zip(edges[:-1].tolist(), edges[1:].tolist(), densities.tolist(), strict=True)
    return [
        {**base, "quantity": f"mean_{side}", "simulated": float(lengths.mean())},
        *({**base, "quantity": side, "from": start, "to": end, "simulated": d} for start, end, d in bars),
    ]


@dataclass(kw_only=True)
class Capacity(Study):
    """What fits where: arithmetic on the model's shape and the server's memory."""

    models: Sequence[str]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return self.each("table1 {model}", sizes, model=self.models)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        rows = table.fillna("").itertuples(index=False)
        return [Finding(row.figure, row.setting, "", row.quantity, row.simulated, note=row.note) for row in rows]


def sizes(store: RunStore, model: str) -> list[Row]:
    """The rows of one model on its server."""
    config = store.config([f"model={model}"])
    spec, server = config.model, config.server
    name = server.name.removesuffix(f"-x{server.num_gpus}")
    pool = {"figure": "table1", "setting": f"{model} {name} x{server.num_gpus}"}
    rows = [
        {**pool, "quantity": "parameters_memory", "simulated": spec.weight_bytes / GIB},
        {**pool, "quantity": "kv_memory", "simulated": server.kv_pool_bytes(spec) / GIB},
        {**pool, "quantity": "kv_slots", "simulated": server.kv_slots(spec, 16)},
    ]
    return rows + (section3(spec) if model == "opt-13b" else [])


def section3(spec: ModelSpec) -> list[Row]:
    """The sizes that section 3 tells of OPT-13B."""
    kib, whole = spec.kv_bytes_per_token / 1024, spec.kv_bytes_per_token * spec.max_len / GIB
    rounded = "the paper gives one decimal; rounded to it the two agree"
    return [
        {"figure": "sec3", "setting": spec.name, "quantity": "kv_bytes_per_token", "simulated": kib},
        {"figure": "sec3", "setting": f"{spec.name} max_len {spec.max_len}", "quantity": "kv_bytes_per_request",
         "simulated": whole, "note": rounded},
    ]  # fmt: skip
