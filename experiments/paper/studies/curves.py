"""Normalized latency against request rate, and the rates that systems sustain (Figures 12, 14, 16 and 17)."""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from experiments.paper.studies.knee import bracket, sustained_rate
from experiments.paper.studies.study import Finding, Row, RowKey, Study, Task
from experiments.runs.lab import Lab
from experiments.runs.point import STOPPED

LATENCY, SUSTAINED = "normalized_latency", "sustained_rate"
STUDENT_T = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


@dataclass(frozen=True)
class Load:
    """One system in one panel."""

    place: tuple[str, str, str]
    overrides: tuple[str, ...]
    rates: tuple[float, ...]
    limit: float
    precision: float
    num_seeds: int
    draws: bool


class Curves(Study):
    """A rate is sustained while the mean normalized latency stays below `limit` s/token; common random numbers.

    Curves are those of seed 0; ratios of sustained rates are means over the seeds, with 95% confidence intervals. The
    grids of rates are the artifact's, but for those of the systems in own_grids.
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
        own_grids: Sequence[str] = (),
    ) -> None:
        super().__init__(name, covers, drawing)
        self.common = tuple(common)
        self.panels = panels
        self.ratios = ratios
        self.limit = limit
        self.precision = precision
        self.num_seeds = num_seeds
        self.own_grids = own_grids
        self.draws = True

    def tasks(self, num_seeds: int | None) -> list[Task]:
        loads = [
            self._load(panel, system, num_seeds or panel.get("num_seeds", self.num_seeds))
            for panel in self.panels
            for system in panel["rates"]
        ]
        return [Task(" ".join(load.place), partial(measure, load=load)) for load in loads]

    def _load(self, panel: Mapping[str, Any], system: str, num_seeds: int) -> Load:
        """A panel may have a precision of its own."""
        own = panel.get("systems", {}).get(system, [])
        overrides = (f"+system={system}", *self.common, *panel["overrides"], *own)
        place = panel["figure"], panel["setting"], system
        precision = panel.get("precision", self.precision)
        return Load(place, overrides, tuple(panel["rates"][system]), self.limit, precision, num_seeds, self.draws)

    def only(self, rows: Collection[RowKey]) -> "Curves":
        """The ratios of these rows, and the sustained rates that they are of; nothing is drawn."""
        fewer = copy(self)
        fewer.draws = False
        fewer.ratios = [r for r in self.ratios if (r["figure"], r["setting"], r["label"], r["quantity"]) in rows]
        needed = {(s, name) for r in fewer.ratios for s in settings_of(r) for name in (r["system"], *r["over"])}
        rates = [{n: grid for n, grid in p["rates"].items() if (p["setting"], n) in needed} for p in self.panels]
        fewer.panels = [{**p, "rates": grids} for p, grids in zip(self.panels, rates, strict=True) if grids]
        return fewer

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        rates = table[table["quantity"] == SUSTAINED].pivot_table(
            index="setting", columns=["system", "seed"], values="simulated", sort=False
        )
        return [self._finding(ratio, rates) for ratio in self.ratios]

    def _finding(self, ratio: Mapping[str, Any], rates: pd.DataFrame) -> Finding:
        """One published ratio: of `system` over each of `over`, in each of `settings`, put together by `reduce`."""
        settings = settings_of(ratio)
        pairs = [
            (rates.loc[setting, ratio["system"]] / rates.loc[setting, other]).dropna().to_numpy()
            for setting in settings
            for other in ratio["over"]
        ]
        means = [float(pair.mean()) for pair in pairs]
        place = ratio["figure"], ratio["setting"], ratio["label"], ratio["quantity"]
        ends = self._grid_ends(ratio)
        if ratio.get("reduce") == "spread":
            over = [float(np.mean(rates.loc[settings[0], other])) for other in ratio["over"]]
            return Finding(*place, max(over) / min(over))
        if ratio.get("reduce") == "each":
            intervals = " / ".join(self._interval(pair) for pair in pairs)
            return Finding(*place, tuple(means), interval=intervals, grid_ends=ends)
        highest = int(np.argmax(means))
        return Finding(*place, means[highest], interval=self._interval(pairs[highest]), grid_ends=ends)

    def _grid_ends(self, ratio: Mapping[str, Any]) -> str:
        """Last rate over last rate of the artifact's grids; a grid ends where its authors stopped, which is no knee."""
        grids = {panel["setting"]: panel["rates"] for panel in self.panels}
        ends = [
            (max(grids[setting][ratio["system"]]), max(grids[setting][other]))
            for setting in settings_of(ratio)
            for other in ratio["over"]
            if other not in self.own_grids
        ]
        return ", ".join(f"{a:g}/{b:g} = {a / b:.2f}" for a, b in ends)

    def _interval(self, values: np.ndarray) -> str:
        """The 95% confidence interval, wider by what a bisection leaves open."""
        return interval(values, self.precision)


def settings_of(ratio: Mapping[str, Any]) -> Sequence[str]:
    """The panels that a published ratio is about."""
    settings: Sequence[str] = ratio.get("settings", [ratio["setting"]])
    return settings


def interval(values: np.ndarray, precision: float) -> str:
    """The 95% confidence interval of a mean of few values, by Student's t, each known to `precision` of itself."""
    if len(values) not in STUDENT_T:
        return ""
    half = STUDENT_T[len(values)] * values.std(ddof=1) / np.sqrt(len(values)) + precision * values.mean()
    return f"{values.mean() - half:.2f} to {values.mean() + half:.2f}"


def measure(lab: Lab, load: Load) -> list[Row]:
    """The curve over the whole grid for seed 0, and every seed's sustained rate, looked for near that of seed 0."""
    first = Search(lab, load, 0)
    rates = sorted(load.rates)
    for rate in rates if load.draws else ():
        first.latency(rate)
    knee = first.knee(*bracket(rates, first.holds))
    near = knee / (1 + load.precision), knee * (1 + load.precision)
    rows = first.rows(knee)
    for seed in range(1, load.num_seeds):
        search = Search(lab, load, seed)
        rows += search.rows(search.knee(*near))
    return rows


class Search:
    """Latencies of one load under one seed, by rate."""

    def __init__(self, lab: Lab, load: Load, seed: int) -> None:
        self.lab, self.load, self.seed = lab, load, seed
        self.known: dict[float, tuple[float, str]] = {}

    def latency(self, rate: float) -> float:
        """Mean normalized latency in s/token; a lower bound of it where the run was stopped above the limit."""
        rate = float(f"{rate:.4g}")
        if rate not in self.known:
            values = {"arrivals.rate": rate, "seed": self.seed, "stop_at_latency": self.load.limit}
            summary, run = self.lab.measure(self.load.overrides, values)
            mean = summary[STOPPED] or summary["normalized_latency_s_per_token"]["mean"]
            self.known[rate] = (float("nan") if mean is None else mean), run
        return self.known[rate][0]

    def holds(self, rate: float) -> bool:
        """Whether the rate is sustained."""
        return not self.latency(rate) >= self.load.limit

    def knee(self, low: float, high: float) -> float:
        """The sustained rate, looked for between these two first."""
        return sustained_rate(self.holds, low, high, self.load.precision)

    def rows(self, knee: float) -> list[Row]:
        """The knee, and every latency on the way to it."""
        figure, setting, system = self.load.place
        base = {"figure": figure, "setting": setting, "system": system, "seed": self.seed}
        rows: list[Row] = [{**base, "quantity": SUSTAINED, "rate": None, "simulated": knee, "run": ""}]
        for rate, (mean, run) in sorted(self.known.items()):
            rows.append({**base, "quantity": LATENCY, "rate": rate, "simulated": mean, "run": run})
        return rows
