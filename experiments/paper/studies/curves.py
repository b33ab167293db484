"""Normalized latency against request rate, and the rates that systems sustain (Figures 12, 14, 16
and 17).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from testbed.experiments.paper.studies.study import Finding, Row, RowKey, Study, Task
from testbed.experiments.runs.run_store import Measured, RunStore
from testbed.run.simulate import STOPPED
from testbed.study import replications
from testbed.study.knee import bracket, sustained_rate

NEAR = 0.10
LATENCY, SUSTAINED = "normalized_latency", "sustained_rate"
Pair = tuple[float, float]


@dataclass(kw_only=True)
class Curves(Study):
    """Curves of latency over the request rate, and the rates that systems sustain.

    A rate is sustained if the mean normalized latency is below `limit` s/token. All systems serve
    the same random requests. Curves are of seed 0. Ratios of sustained rates are means over the
    seeds with 95% confidence intervals. The grids of rates are the artifact's, except for the
    systems in own_grids.
    """

    panels: Sequence[Mapping[str, Any]]
    ratios: Sequence[Mapping[str, Any]]
    limit: float = 1.0  # s/token: where the paper's axis ends
    precision: float = 0.03  # of a sustained rate
    num_seeds: int = 3
    own_grids: Sequence[str] = ()  # systems whose rates are ours, not the artifact's
    draws: bool = True

    def __post_init__(self) -> None:
        self.panels = [{"figure": self.name, "overrides": [], **panel} for panel in self.panels]
        usual = {"figure": self.name, "quantity": f"{SUSTAINED}_ratio", "system": "vllm"}
        self.ratios = [
            {**usual, "label": f"vllm vs {ratio['over'][0]}", **ratio} for ratio in self.ratios
        ]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return [
            Task(
                f"{panel['figure']} {panel['setting']} {system}",
                partial(self.measure, panel, system, num_seeds),
            )
            for panel in self.panels
            for system in panel["rates"]
        ]

    def measure(
        self, panel: Mapping[str, Any], system: str, num_seeds: int | None, store: RunStore
    ) -> list[Row]:
        """The curve of seed 0 over the whole grid, and the sustained rate of every seed.

        The search for other seeds begins near the rate of seed 0. A panel may have its own
        precision and number of seeds, and options for some of its systems.
        """
        of_system = panel.get("systems", {}).get(system, [])
        precision = panel.get("precision", self.precision)
        overrides = (f"+system={system}", *self.common, *panel["overrides"], *of_system)
        rows: list[Row] = []
        near = None
        for seed in range(num_seeds or panel.get("num_seeds", self.num_seeds)):
            measured = partial(store.measure, (*overrides, f"seed={seed}"))
            rates = sorted(panel["rates"][system])
            knee, latencies = self.searched(measured, rates, near, precision)
            near = near or (knee / (1 + precision), knee * (1 + precision))
            base = {
                "figure": panel["figure"],
                "setting": panel["setting"],
                "system": system,
                "seed": seed,
            }
            rows.append({**base, "quantity": SUSTAINED, "rate": None, "simulated": knee, "run": ""})
            for rate, (mean, run) in sorted(latencies.items()):
                rows.append(
                    {**base, "quantity": LATENCY, "rate": rate, "simulated": mean, "run": run}
                )
        return rows

    def searched(
        self,
        measured: Callable[[dict[str, Any]], Measured],
        rates: list[float],
        near: Pair | None,
        precision: float,
    ) -> tuple[float, dict[float, tuple[float, str]]]:
        """The sustained rate, and the mean latency (s/token) and run of each simulated rate.

        near: two rates at which the search begins; None for the whole grid. The latency is a lower
        bound if the run was stopped above the limit.
        """
        latencies: dict[float, tuple[float, str]] = {}

        def is_sustained(rate: float) -> bool:
            rate = float(f"{rate:.4g}")
            if rate not in latencies:
                summary, run = measured({"arrivals.rate": rate, "stop_at_latency": self.limit})
                mean = summary[STOPPED] or summary["normalized_latency_s_per_token"]["mean"]
                latencies[rate] = (float("nan") if mean is None else mean), run
            mean, _ = latencies[rate]
            return not mean >= self.limit  # NaN, without a finished request, is sustained

        if self.draws and near is None:
            for rate in rates:
                is_sustained(rate)
        low, high = near or bracket(rates, is_sustained)
        knee = sustained_rate(is_sustained, low, high, precision)
        return knee, latencies

    def only(self, rows: Collection[RowKey]) -> "Curves":
        """The ratios of these rows, and the sustained rates that they need; nothing is drawn."""
        ratios = [ratio for ratio in self.ratios if _row_key(ratio) in rows]
        needed = set[tuple[str, str]]()
        for ratio in ratios:
            needed |= set(product(settings_of(ratio), (ratio["system"], *ratio["over"])))
        panels = []
        for panel in self.panels:
            grids = {
                system: grid
                for system, grid in panel["rates"].items()
                if (panel["setting"], system) in needed
            }
            if grids:
                panels.append({**panel, "rates": grids})
        return replace(self, draws=False, ratios=ratios, panels=panels)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        rates = table[table["quantity"] == SUSTAINED].pivot_table(
            index="setting", columns=["system", "seed"], values="simulated", sort=False
        )
        return [self._finding(ratio, rates) for ratio in self.ratios]

    def _finding(self, ratio: Mapping[str, Any], rates: pd.DataFrame) -> Finding:
        """A published ratio: of `system` over each of `over` in each of `settings`.

        `reduce` says how these are combined; by default the highest mean counts.
        """
        settings = settings_of(ratio)
        pairs = {}
        for setting, other in product(settings, ratio["over"]):
            of_seeds = rates.loc[setting, ratio["system"]] / rates.loc[setting, other]
            pairs[setting, other] = of_seeds.dropna().to_numpy()
        means = {place: float(pair.mean()) for place, pair in pairs.items()}
        row = _row_key(ratio)
        ends = self._grid_ends(ratio)
        match ratio.get("reduce"):
            case "spread":
                over = [float(np.mean(rates.loc[settings[0], other])) for other in ratio["over"]]
                return Finding(*row, max(over) / min(over))
            case "each":
                intervals = " / ".join(interval(pair, self.precision) for pair in pairs.values())
                return Finding(*row, tuple(means.values()), interval=intervals, grid_ends=ends)
            case "mean":
                by_other = [[means[s, other] for s in settings] for other in ratio["over"]]
                return Finding(*row, tuple(map(fmean, by_other)))
            case "rises":
                other = ratio["over"][0]
                by_setting = {setting: means[setting, other] for setting in settings}
                return rising(row, by_setting, ratio["rises"])
        highest = max(means, key=means.__getitem__)
        where = f"of {highest[0]}" if len(settings) > 1 else ""
        shown = interval(pairs[highest], self.precision)
        return Finding(*row, means[highest], interval=shown, note=where, grid_ends=ends)

    def _grid_ends(self, ratio: Mapping[str, Any]) -> str:
        """The ratios of the last rates of the artifact's grids.

        A grid ends where the paper's authors stopped, which need not be a knee.
        """
        grids = {panel["setting"]: panel["rates"] for panel in self.panels}
        texts = []
        for setting in settings_of(ratio):
            last = max(grids[setting][ratio["system"]])
            for other in ratio["over"]:
                if other not in self.own_grids:
                    last_of_other = max(grids[setting][other])
                    texts.append(f"{last:g}/{last_of_other:g} = {last / last_of_other:.2f}")
        return ", ".join(texts)


def _row_key(ratio: Mapping[str, Any]) -> RowKey:
    """The row of reference.csv that a ratio simulates."""
    return ratio["figure"], ratio["setting"], ratio["label"], ratio["quantity"]


def settings_of(ratio: Mapping[str, Any]) -> Sequence[str]:
    """The panels that a published ratio is about."""
    if "rises" in ratio:
        return list(dict.fromkeys(setting for pair in ratio["rises"] for setting in pair))
    settings: Sequence[str] = ratio.get("settings", [ratio["setting"]])
    return settings


def rising(row: RowKey, ratios: Mapping[str, float], pairs: Sequence[Sequence[str]]) -> Finding:
    """In each pair of settings the second has the larger ratio; larger by NEAR is a margin of 1."""
    rises = [(ratios[first], ratios[second]) for first, second in pairs]
    text = ", ".join(f"{low:.2f} to {high:.2f}" for low, high in rises)
    margin = min((high / low - 1) / NEAR for low, high in rises)
    return Finding(*row, text, margin)


def interval(values: np.ndarray, precision: float) -> str:
    """The 95% interval of a mean of few values, each with the relative error `precision`; empty for
    one value.
    """
    of_seeds = replications.interval(values.tolist())
    mean, half, _ = replications.within_step(of_seeds, precision * of_seeds.mean)
    return "" if half is None else f"{mean - half:.2f} to {mean + half:.2f}"
