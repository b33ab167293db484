"""Averages over a window of runs at a fixed rate (Figures 2, 13 and 15)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from testbed.experiments.paper.studies.study import Finding, Row, RowKey, Study, Task, numbers_of
from testbed.experiments.runs.run_store import RunStore

WIDTHS = (2, 4, 6)
SHARES = {"token_states": "token_states", "reservation": "reserved", "internal_fragmentation": "internal",
          "external_fragmentation_and_others": "external"}  # fmt: skip
SAVING = {"memory_saving": "memory_saving.per_iteration"}


@dataclass(kw_only=True)
class Averages(Study):
    """Every system in every panel; the value of a quantity is the mean over the seeds, one seed by default.

    ratios: published ratios of a quantity, of one system over another in one setting.
    """

    common: Sequence[str]
    systems: Sequence[str]
    panels: Sequence[dict[str, Any]]
    quantities: Sequence[str]
    ratios: Sequence[Mapping[str, str]] = ()

    def tasks(self, num_seeds: int | None) -> list[Task]:
        label = "{panel[figure]} {panel[setting]}, {system}, seed {seed}"
        seeds = range(num_seeds or 1)
        return self.each(label, self.averages, panel=self.panels, system=self.systems, seed=seeds)

    def only(self, rows: Collection[RowKey]) -> "Averages":
        """The panels, ratios and systems of these rows; a ratio needs both of its systems."""
        panels = [panel for panel in self.panels if panel["setting"] in {setting for _, setting, _, _ in rows}]
        ratios = [ratio for ratio in self.ratios if _ratio_key(ratio) in rows]
        needed = {system for _, _, system, _ in rows} | {ratio[of] for ratio in ratios for of in ("system", "over")}
        return replace(self, panels=panels, ratios=ratios, systems=[one for one in self.systems if one in needed])

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        means = table.groupby(["figure", "setting", "system", "quantity"], sort=False)["simulated"].mean()
        found = [
            Finding(figure, setting, system, what, mean) for (figure, setting, system, what), mean in means.items()
        ]
        for ratio in self.ratios:
            place, of = (ratio["figure"], ratio["setting"]), ratio["quantity"]
            value = means[*place, ratio["system"], of] / means[*place, ratio["over"], of]
            found.append(Finding(*_ratio_key(ratio), float(value)))
        return found

    def averages(self, store: RunStore, panel: Mapping[str, Any], system: str, seed: int) -> list[Row]:
        """One run's averages per iteration, as the paper's scripts take them."""
        summary, run = store.measure((f"+system={system}", *self.common, *panel["overrides"]), {"seed": seed})
        values = quantities_of(summary)
        place = {"figure": panel["figure"], "setting": panel["setting"], "system": system}
        return [{**place, "quantity": q, "simulated": values[q], "seed": seed, "run": run} for q in self.quantities]


def _ratio_key(ratio: Mapping[str, str]) -> RowKey:
    compared = f"{ratio['system']} vs {ratio['over']}"
    return ratio["figure"], ratio["setting"], compared, f"{ratio['quantity']}_ratio"


@dataclass(kw_only=True)
class Savings(Averages):
    """Memory saved by sharing blocks: averages, and what section 6.3 says of several of them together."""

    def only(self, rows: Collection[RowKey]) -> "Savings":
        """One run serves several rows."""
        return self

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        savings = table.groupby("setting")["simulated"].mean()
        parallel, sharegpt, beams = (
            tuple(float(savings[f"opt-13b {kind} {width}"]) for width in WIDTHS)
            for kind in ("alpaca parallel", "sharegpt parallel", "sharegpt beam")
        )
        # All but one of n sequences do without a copy of the prompt: they save (n - 1) / n of the prompts' share.
        share = sum(value * n / (n - 1) for value, n in zip(parallel, WIDTHS, strict=True)) / len(WIDTHS)
        place = "sec6.3", "opt-13b alpaca parallel sampling", "vllm", "prompt_share_of_kv"
        return [
            *(finding for finding in super().findings(table) if finding.figure != "sec6.3"),
            Finding(*place, share, note="from the savings of Figure 15a"),
            Finding("sec6.3", "opt-13b sharegpt parallel 2..6", "vllm", "memory_saving", sharegpt),
            Finding("sec6.3", "opt-13b sharegpt beam 2..6", "vllm", "memory_saving", beams),
        ]


def quantities_of(summary: dict[str, Any]) -> dict[str, float]:
    """A summary in the paper's words; shares in percent."""
    places = {name: f"memory.{kind}.per_iteration" for name, kind in SHARES.items()}
    percent = {name: 100 * share for name, share in numbers_of(summary, **places, **SAVING).items()}
    batched = summary["batch"]["mean_per_iteration"]
    return {**percent, "all_waste": 100 - percent["token_states"], "mean_batched_requests": batched}
