"""Normalized latency against request rate, and the rates that systems sustain (Figures 12, 14, 16 and 17)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from experiments.lab import Lab
from experiments.point import STOPPED
from experiments.studies.knee import bracket, sustained_rate
from experiments.studies.study import Finding, Row, Study, Task

LATENCY, SUSTAINED = "normalized_latency", "sustained_rate"
STUDENT_T = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


@dataclass(frozen=True)
class Load:
    """One system in one panel under one seed."""

    place: tuple[str, str, str]
    overrides: tuple[str, ...]
    rates: tuple[float, ...]
    limit: float
    precision: float
    seed: int


class Curves(Study):
    """A rate is sustained while the mean normalized latency stays below `limit` s/token; common random numbers.

    Curves are those of seed 0; ratios of sustained rates are means over the seeds, with 95% confidence intervals.
    """

    def __init__(
        self,
        name: str,
        covers: Sequence[str],
        drawing: str,
        common: Sequence[str],
        panels: Sequence[Mapping[str, Any]],
        ratios: Sequence[Mapping[str, Any]],
        limit: float = 1.0,
        precision: float = 0.02,
        num_seeds: int = 3,
    ) -> None:
        super().__init__(name, covers, drawing)
        self.common = tuple(common)
        self.panels = panels
        self.ratios = ratios
        self.limit = limit
        self.precision = precision
        self.num_seeds = num_seeds

    def tasks(self, num_seeds: int | None) -> list[Task]:
        loads = [
            self._load(panel, system, seed)
            for panel in self.panels
            for system in panel["rates"]
            for seed in range(num_seeds or panel.get("num_seeds", self.num_seeds))
        ]
        return [Task(f"{' '.join(load.place)}, seed {load.seed}", partial(measure, load=load)) for load in loads]

    def _load(self, panel: Mapping[str, Any], system: str, seed: int) -> Load:
        own = panel.get("systems", {}).get(system, [])
        overrides = (f"+system={system}", *self.common, *panel["overrides"], *own)
        place = panel["figure"], panel["setting"], system
        return Load(place, overrides, tuple(panel["rates"][system]), self.limit, self.precision, seed)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        rates = table[table["quantity"] == SUSTAINED].pivot_table(
            index="setting", columns=["system", "seed"], values="simulated", sort=False
        )
        return [self._finding(ratio, rates) for ratio in self.ratios]

    def _finding(self, ratio: Mapping[str, Any], rates: pd.DataFrame) -> Finding:
        """One published ratio: of `system` over each of `over`, in each of `settings`, put together by `reduce`."""
        settings = ratio.get("settings", [ratio["setting"]])
        pairs = [
            (rates.loc[setting, ratio["system"]] / rates.loc[setting, other]).dropna().to_numpy()
            for setting in settings
            for other in ratio["over"]
        ]
        means = [float(pair.mean()) for pair in pairs]
        place = ratio["figure"], ratio["setting"], ratio["label"], ratio["quantity"]
        if ratio.get("reduce") == "spread":
            over = [float(np.mean(rates.loc[settings[0], other])) for other in ratio["over"]]
            return Finding(*place, max(over) / min(over))
        if ratio.get("reduce") == "each":
            return Finding(*place, tuple(means), interval=" / ".join(interval(pair) for pair in pairs))
        highest = int(np.argmax(means))
        return Finding(*place, means[highest], interval=interval(pairs[highest]))


def interval(values: np.ndarray) -> str:
    """The 95% confidence interval of a mean of few values, by Student's t."""
    if len(values) not in STUDENT_T:
        return ""
    half = STUDENT_T[len(values)] * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean() - half:.2f} to {values.mean() + half:.2f}"


def measure(lab: Lab, load: Load) -> list[Row]:
    """The curve over the whole grid for seed 0, and the sustained rate."""
    figure, setting, system = load.place
    known: dict[float, tuple[float, str]] = {}

    def latency(rate: float) -> float:
        rate = float(f"{rate:.4g}")
        if rate not in known:
            values = {"arrivals.rate": rate, "seed": load.seed, "stop_at_latency": load.limit}
            summary, run = lab.measure(load.overrides, values)
            mean = summary[STOPPED] or summary["normalized_latency_s_per_token"]["mean"]
            known[rate] = (float("nan") if mean is None else mean), run
        return known[rate][0]

    def holds(rate: float) -> bool:
        return not latency(rate) >= load.limit

    rates = sorted(load.rates)
    if load.seed == 0:
        for rate in rates:
            latency(rate)
    knee = sustained_rate(holds, *bracket(rates, holds), load.precision)
    base = {"figure": figure, "setting": setting, "system": system, "seed": load.seed}
    rows: list[Row] = [{**base, "quantity": SUSTAINED, "rate": None, "simulated": knee, "run": ""}]
    for rate, (mean, run) in sorted(known.items()):
        rows.append({**base, "quantity": LATENCY, "rate": rate, "simulated": mean, "run": run})
    return rows
