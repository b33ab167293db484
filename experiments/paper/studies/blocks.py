"""Latency at a fixed rate against block size (Figures 18b and 19b)."""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

import pandas as pd

from experiments.paper.studies.study import Finding, Row, RowKey, Study, Task
from experiments.runs.lab import Lab

SLACK = 0.02
NEAR = 0.10
COMPARED = ("recompute", "swap")


class BlockSizes(Study):
    """Every variant at every block size. `best` and `compare` say what the paper claims of the curves."""

    def __init__(
        self,
        name: str,
        covers: Sequence[str],
        drawing: str,
        figure: str,
        common: Sequence[str],
        block_sizes: Sequence[int],
        variants: Sequence[Mapping[str, Any]],
        best: Sequence[Mapping[str, Any]] = (),
        compare: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, covers, drawing)
        self.figure = figure
        self.common = tuple(common)
        self.block_sizes = block_sizes
        self.variants = variants
        self.best = best
        self.compare = compare

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return [
            Task(
                f"{self.figure} {variant['setting']} {variant['system']}, blocks of {size}, seed {seed}",
                partial(
                    latency,
                    base={key: variant[key] for key in ("setting", "system")} | {"figure": self.figure},
                    overrides=(*self.common, *variant["overrides"], f"policy.block_size={size}"),
                    size=size,
                    seed=seed,
                ),
            )
            for variant in self.variants
            for size in self.block_sizes
            for seed in range(num_seeds or 1)
        ]

    def only(self, rows: Collection[RowKey]) -> "BlockSizes":
        """The claims of these rows, and the curves that they are about."""
        fewer, settings = copy(self), {setting for figure, setting, _, _ in rows if figure == self.figure}
        fewer.best = [claim for claim in self.best if claim["setting"] in settings]
        fewer.compare = self.compare if self.compare and self.compare["setting"] in settings else None
        curves = {(claim["setting"], "vllm") for claim in fewer.best}
        curves |= {(fewer.compare["setting"], name) for name in COMPARED} if fewer.compare else set()
        fewer.variants = [v for v in self.variants if (v["setting"], v["system"]) in curves]
        return fewer

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        if not (self.best or self.compare):
            return []
        curves = table.groupby(["setting", "system", "block_size"])["simulated"].mean()
        found = [best_sizes(self.figure, claim, curves[claim["setting"], "vllm"]) for claim in self.best]
        return found + ([comparable_sizes(self.figure, self.compare, curves)] if self.compare else [])


def latency(lab: Lab, base: Row, overrides: Sequence[str], size: int, seed: int) -> list[Row]:
    """The mean normalized latency of one run."""
    summary, run = lab.measure(overrides, {"seed": seed})
    mean = summary["normalized_latency_s_per_token"]["mean"]
    preemptions = sum(summary["preemptions"].values())
    return [{**base, "block_size": size, "simulated": mean, "preemptions": preemptions, "seed": seed, "run": run}]


def best_sizes(figure: str, claim: Mapping[str, Any], curve: pd.Series) -> Finding:
    """Every size of the claimed range is within NEAR of the best one, and none outside is better by more than SLACK.

    Where the claim says from which size on latency is markedly worse, each of those is worse than all of the range.
    """
    low, high = claim["sizes"]
    claimed, others = curve.loc[low:high], curve.drop(curve.loc[low:high].index)
    margins = [
        1 - (claimed.max() / curve.min() - 1) / NEAR,
        1 - (claimed.min() / others.min() - 1) / SLACK,
    ]
    if "worse_from" in claim:
        margins.append((curve.loc[claim["worse_from"] :].min() / claimed.max() - 1) / NEAR)
    text = ", ".join(f"{size}: {value:.2f}" for size, value in (curve / curve.min()).items())
    place = figure, claim["setting"], "vllm", claim["quantity"]
    return Finding(*place, f"of the best {text}", float(min(margins)))


def comparable_sizes(figure: str, claim: Mapping[str, Any], curves: pd.Series) -> Finding:
    """Recompute and swap within NEAR of each other inside the range; recompute ahead below it, swap above."""
    low, high = claim["sizes"]
    recompute, swap = (curves[claim["setting"], name] for name in COMPARED)
    ratio = swap / recompute
    inside, below, above = ratio.loc[low:high], ratio.loc[: low - 1], ratio.loc[high + 1 :]
    apart = max(inside.max(), 1 / inside.min())
    margins = 1 - (apart - 1) / NEAR, (below.min() - 1) / NEAR, (1 / above.max() - 1) / NEAR
    text = ", ".join(f"{size}: {value:.2f}" for size, value in ratio.items())
    place = figure, claim["setting"], "recompute vs swap", claim["quantity"]
    return Finding(*place, f"swap/recompute {text}", float(min(margins)))
