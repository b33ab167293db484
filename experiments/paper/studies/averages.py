"""Averages over a window of runs at a fixed rate (Figures 2 and 13)."""

from collections.abc import Collection, Sequence
from copy import copy
from functools import partial
from typing import Any

import pandas as pd

from experiments.paper.studies.study import Finding, Row, RowKey, Study, Task
from experiments.runs.lab import Lab


class Averages(Study):
    """Every system in every panel; the value of a quantity is the mean over the seeds, one seed by default."""

    def __init__(
        self,
        name: str,
        covers: Sequence[str],
        drawing: str,
        common: Sequence[str],
        systems: Sequence[str],
        panels: Sequence[dict[str, Any]],
        quantities: Sequence[str],
    ) -> None:
        super().__init__(name, covers, drawing)
        self.common = tuple(common)
        self.systems = tuple(systems)
        self.panels = panels
        self.quantities = tuple(quantities)

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return [
            Task(
                f"{panel['figure']} {panel['setting']}, {system}, seed {seed}",
                partial(
                    averages,
                    figure=panel["figure"],
                    setting=panel["setting"],
                    system=system,
                    overrides=(*self.common, *panel["overrides"]),
                    seed=seed,
                    quantities=self.quantities,
                ),
            )
            for panel in self.panels
            for system in self.systems
            for seed in range(num_seeds or 1)
        ]

    def only(self, rows: Collection[RowKey]) -> "Averages":
        """The panels and systems of these rows."""
        fewer = copy(self)
        fewer.panels = [panel for panel in self.panels if panel["setting"] in {setting for _, setting, _, _ in rows}]
        fewer.systems = tuple(system for system in self.systems if system in {system for _, _, system, _ in rows})
        return fewer

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        groups = table.groupby(["figure", "setting", "system", "quantity"], sort=False)["simulated"]
        return [Finding(*key, mean) for key, mean in groups.mean().items()]


def averages(
    lab: Lab, figure: str, setting: str, system: str, overrides: Sequence[str], seed: int, quantities: Sequence[str]
) -> list[Row]:
    """One run's averages per iteration, as the paper's scripts take them."""
    summary, run = lab.measure((f"+system={system}", *overrides), {"seed": seed})
    values = quantities_of(summary)
    place = {"figure": figure, "setting": setting, "system": system}
    return [{**place, "quantity": q, "simulated": values[q], "seed": seed, "run": run} for q in quantities]


def quantities_of(summary: dict[str, Any]) -> dict[str, float]:
    """A summary in the paper's words; shares in percent."""
    memory = {kind: 100 * part["per_iteration"] for kind, part in summary["memory"].items()}
    return {
        "token_states": memory["token_states"],
        "reservation": memory["reserved"],
        "internal_fragmentation": memory["internal"],
        "external_fragmentation_and_others": memory["external"],
        "all_waste": 100 - memory["token_states"],
        "memory_saving": 100 * summary["memory_saving"]["per_iteration"],
        "mean_batched_requests": summary["batch"]["mean_per_iteration"],
    }
