"""Latency at a fixed rate against block size (Figures 18b and 19b)."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from experiments.paper.studies.study import Finding, Row, Study, Task
from experiments.runs.lab import Lab

SLACK = 0.02
COMPARABLE = 0.10


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

    def findings(self, table: pd.DataFrame) -> list[Finding]:
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
    """The sizes within SLACK of the best one; the best of the claimed range must be among them."""
    low, high = claim["sizes"]
    good = [int(size) for size, value in curve.items() if value <= curve.min() * (1 + SLACK)]
    holds = curve.loc[low:high].min() <= curve.min() * (1 + SLACK)
    text = ", ".join(map(str, good))
    return Finding(
        figure, claim["setting"], "vllm", claim["quantity"], text, bool(holds), note="sizes within 2% of the best"
    )


def comparable_sizes(figure: str, claim: Mapping[str, Any], curves: pd.Series) -> Finding:
    """Recompute and swap within COMPARABLE of each other inside the range; recompute ahead below it, swap above."""
    low, high = claim["sizes"]
    recompute, swap = (curves[claim["setting"], name] for name in ("recompute", "swap"))
    ratio = swap / recompute
    inside = ratio.loc[low:high].between(1 / (1 + COMPARABLE), 1 + COMPARABLE).all()
    order = (ratio.loc[: low - 1] >= 1).all() and (ratio.loc[high + 1 :] <= 1).all()
    text = ", ".join(f"{size}: {value:.2f}" for size, value in ratio.items())
    place = figure, claim["setting"], "recompute vs swap", claim["quantity"]
    return Finding(*place, f"swap/recompute {text}", bool(inside and order))
