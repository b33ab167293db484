"""Averages at a fixed rate (Figures 2, 13 and 15); batches, lengths and servers (Figures 1 and 11,
Table 1).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from testbed.core.specs import GIB
from testbed.experiments.paper.studies.study import Finding, Row, RowKey, Study, Task
from testbed.experiments.runs.run_store import RunStore
from testbed.traces.reader import FileTrace

WIDTHS = (2, 4, 6)
SHARES = {
    "token_states": "token_states",
    "reservation": "reserved",
    "internal_fragmentation": "internal",
    "external_fragmentation_and_others": "external",
}


@dataclass(kw_only=True)
class Averages(Study):
    """One run for each system, panel and seed; values are means over the seeds (by default one).

    ratios: published rows whose system is `first vs second` and whose quantity ends in `_ratio`.
    """

    systems: Sequence[str]
    panels: Sequence[dict[str, Any]]
    quantities: Sequence[str]
    ratios: Sequence[RowKey] = ()

    def tasks(self, num_seeds: int | None) -> list[Task]:
        label = "{panel[figure]} {panel[setting]}, {system}, seed {seed}"
        seeds = range(num_seeds or 1)
        return self.each(label, self.averages, panel=self.panels, system=self.systems, seed=seeds)

    def only(self, rows: Collection[RowKey]) -> "Averages":
        """The panels, ratios and systems of these rows; a ratio needs both of its systems."""
        settings = {setting for _, setting, _, _ in rows}
        needed = {name for _, _, system, _ in rows for name in system.split(" vs ")}
        return replace(
            self,
            panels=[panel for panel in self.panels if panel["setting"] in settings],
            ratios=[ratio for ratio in self.ratios if tuple(ratio) in rows],
            systems=[system for system in self.systems if system in needed],
        )

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        means = table.groupby(["figure", "setting", "system", "quantity"], sort=False)[
            "simulated"
        ].mean()
        findings = [Finding(*row) for row in means.reset_index().itertuples(index=False, name=None)]
        for row in self.ratios:
            figure, setting, compared, ratio = row
            quantity = ratio.removesuffix("_ratio")
            first, second = compared.split(" vs ")
            of_first = means[figure, setting, first, quantity]
            of_second = means[figure, setting, second, quantity]
            findings.append(Finding(*row, float(of_first / of_second)))
        return findings

    def averages(
        self, store: RunStore, panel: Mapping[str, Any], system: str, seed: int
    ) -> list[Row]:
        """The averages per iteration of one run, in percent, as in the paper's scripts."""
        summary, run = store.measure(
            (f"+system={system}", *self.common, *panel["overrides"]), {"seed": seed}
        )
        values = {
            name: 100 * summary["memory"][kind]["per_iteration"] for name, kind in SHARES.items()
        }
        values["memory_saving"] = 100 * summary["memory_saving"]["per_iteration"]
        values["all_waste"] = 100 - values["token_states"]
        values["mean_batched_requests"] = summary["batch"]["mean_per_iteration"]
        place = {"figure": panel["figure"], "setting": panel["setting"], "system": system}
        return [
            {**place, "quantity": q, "simulated": values[q], "seed": seed, "run": run}
            for q in self.quantities
        ]


@dataclass(kw_only=True)
class Savings(Averages):
    """Memory saved by sharing blocks: averages, and the statements of section 6.3 on them."""

    def only(self, rows: Collection[RowKey]) -> "Savings":
        """The whole study, because a run serves several rows."""
        return self

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        savings = table.groupby("setting")["simulated"].mean()
        parallel, sharegpt, beams = (
            tuple(float(savings[f"opt-13b {kind} {width}"]) for width in WIDTHS)
            for kind in ("alpaca parallel", "sharegpt parallel", "sharegpt beam")
        )
        # Of n sequences n - 1 need no copy of the prompt, so they save (n - 1) / n of its share.
        shares = [value * n / (n - 1) for value, n in zip(parallel, WIDTHS, strict=True)]
        share = sum(shares) / len(WIDTHS)
        place = "sec6.3", "opt-13b alpaca parallel sampling", "vllm", "prompt_share_of_kv"
        return [
            *(finding for finding in super().findings(table) if finding.figure != "sec6.3"),
            Finding(*place, share, note="from the savings of Figure 15a"),
            *(
                Finding("sec6.3", f"opt-13b sharegpt {kind} 2..6", "vllm", "memory_saving", saved)
                for kind, saved in (("parallel", sharegpt), ("beam", beams))
            ),
        ]


@dataclass(kw_only=True)
class Saturation(Study):
    """One run for each system and limit of the batch, which memory may keep smaller."""

    systems: Mapping[str, str]
    batch_sizes: Sequence[int]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return self.each(
            "fig1 {label}, batch of {size}",
            self.saturate,
            label=self.systems,
            size=self.batch_sizes,
        )

    def saturate(self, store: RunStore, label: str, size: int) -> list[Row]:
        """Memory in GiB, weights included, and output tokens per second."""
        overrides = (f"+system={self.systems[label]}", *self.common)
        summary, run = store.measure(overrides, {"scheduler.max_num_seqs": size})
        config = store.config(overrides)
        model, server = config.model, config.server
        used = sum(
            summary["memory"][kind]["over_time"]
            for kind in ("token_states", "reserved", "internal")
        )
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
        means = table[table["quantity"].str.startswith("mean")].set_index(["setting", "quantity"])[
            "simulated"
        ]
        findings = [
            Finding(figure="fig11", setting=setting, system="", quantity=quantity, simulated=value)
            for (setting, quantity), value in means.items()
        ]
        for side in ("input", "output"):
            ratio = means["sharegpt", f"mean_{side}"] / means["alpaca", f"mean_{side}"]
            findings.append(
                Finding(
                    figure="fig11",
                    setting="sharegpt over alpaca",
                    system="",
                    quantity=f"mean_{side}_ratio",
                    simulated=float(ratio),
                )
            )
        return findings

    def histogram(self, store: RunStore, trace: str) -> list[Row]:
        """Mean and densities of inputs and outputs below 2048 tokens in all."""
        config = store.config([f"trace={trace}"])
        source = config.trace.make("trace")
        rows = source.rows(
            None if isinstance(source, FileTrace) else self.num_rows, 0, config.workload.max_len
        )
        start, stop, width = self.bins[trace]
        edges, base = np.arange(start, stop + 1, width), {"figure": "fig11", "setting": trace}
        table: list[Row] = []
        for side, lengths in (("input", rows.prompt_len), ("output", rows.output_len)):
            densities = np.histogram(lengths, edges)[0] / len(lengths) / np.diff(edges)
            bars = zip(edges[:-1].tolist(), edges[1:].tolist(), densities.tolist(), strict=True)
            table.append({**base, "quantity": f"mean_{side}", "simulated": float(lengths.mean())})
            table += [
                {**base, "quantity": side, "from": low, "to": high, "simulated": d}
                for low, high, d in bars
            ]
        return table


@dataclass(kw_only=True)
class Capacity(Study):
    """The memory of models on servers; only arithmetic, no simulation."""

    models: Sequence[str]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return self.each("table1 {model}", sizes, model=self.models)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        rows = table.fillna("").itertuples(index=False)
        return [
            Finding(row.figure, row.setting, "", row.quantity, row.simulated, note=row.note)
            for row in rows
        ]


def sizes(store: RunStore, model: str) -> list[Row]:
    """The rows of one model on its server."""
    config = store.config([f"model={model}"])
    spec, server = config.model, config.server
    pool = f"{model} {server.name.removesuffix(f'-x{server.num_gpus}')} x{server.num_gpus}"
    findings: list[tuple[str, str, str, float, str | None]] = [
        ("table1", pool, "parameters_memory", spec.weight_bytes / GIB, None),
        ("table1", pool, "kv_memory", server.kv_pool_bytes(spec) / GIB, None),
        ("table1", pool, "kv_slots", server.kv_slots(spec, 16), None),
    ]
    if model == "opt-13b":  # section 3 gives these sizes
        token_kib = spec.kv_bytes_per_token / 1024
        request_gib = spec.kv_bytes_per_token * spec.max_len / GIB
        longest = f"{model} max_len {spec.max_len}"
        note = "the paper gives one decimal; rounded to it the two agree"
        findings.append(("sec3", model, "kv_bytes_per_token", token_kib, None))
        findings.append(("sec3", longest, "kv_bytes_per_request", request_gib, note))
    return [
        dict(zip(("figure", "setting", "quantity", "simulated", "note"), row, strict=True))
        for row in findings
    ]
