"""Latency by block size, and the cost of blocks in kernels and recoveries (Figures 18 and 19)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from typing import Any, Self

import pandas as pd

from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.core.slots import DEVICE, HOST, ceil_div
from testbed.cost.model import Moved, Work
from testbed.experiments.paper.studies.study import (
    Finding,
    Row,
    RowKey,
    Study,
    Task,
    kept_rows,
    reported,
)
from testbed.experiments.runs.run_store import RunStore
from testbed.run.machine import cost_of

SLACK = 0.02
NEAR = 0.10
COMPARED = ("recompute", "swap")
KERNELS = {"paging cost": ("paged", "contiguous"), "the paper's design": ("paper",)}
OURS = "the testbed's own kernel"
THEIRS = (
    "the 2023 system's design, measured on an H200, where the paper has an A100 and "
    "FasterTransformer's kernel"
)
FLAT = 0.10
AS_DRAWN = "recompute as drawn"
TAILS = "recompute of tails"
PEAK = (
    "20 ms for 256 tokens of 13B parameters would be more than the A100's peak allows: 21 ms at "
    "312 TFLOP/s"
)


@dataclass(kw_only=True)
class BlockSizes(Study):
    """Every variant at every block size."""

    figure: str
    block_sizes: Sequence[int]
    variants: Sequence[Mapping[str, Any]]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        label = "{study.figure} {variant[setting]} {variant[system]}, blocks of {size}, seed {seed}"
        seeds = range(num_seeds or 1)
        return self.each(
            label, self.latency, variant=self.variants, size=self.block_sizes, seed=seeds
        )

    def latency(
        self, store: RunStore, variant: Mapping[str, Any], size: int, seed: int
    ) -> list[Row]:
        """The mean normalized latency of one run."""
        overrides = (*self.common, *variant["overrides"], f"policy.block_size={size}")
        summary, run = store.measure(overrides, {"seed": seed})
        place = {
            "setting": variant["setting"],
            "system": variant["system"],
            "figure": self.figure,
            "block_size": size,
        }
        mean = summary["normalized_latency_s_per_token"]["mean"]
        again = {
            "preemptions": sum(summary["preemptions"].values()),
            "recomputed_tokens": summary["recomputed_tokens"],
        }
        return [{**place, "simulated": mean, **again, "seed": seed, "run": run}]


def best_sizes(figure: str, claim: Mapping[str, Any], curve: pd.Series) -> Finding:
    """The finding on a claim that a range of block sizes is best.

    It holds if each size of the range is within NEAR of the best one, and no other size is better
    by more than SLACK. With `worse_from`, each size from that on must be worse than the range.
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
    """The finding on a claim that recompute and swap are comparable in a range of block sizes.

    It holds if both are within NEAR of each other in the range, recompute is faster below it, and
    swap is faster above it.
    """
    low, high = claim["sizes"]
    recompute, swap = (curves[claim["setting"], name] for name in COMPARED)
    ratio = swap / recompute
    inside, below, above = ratio.loc[low:high], ratio.loc[: low - 1], ratio.loc[high + 1 :]
    apart = max(inside.max(), 1 / inside.min())
    margins = 1 - (apart - 1) / NEAR, (below.min() - 1) / NEAR, (1 / above.max() - 1) / NEAR
    text = ", ".join(f"{size}: {value:.2f}" for size, value in ratio.items())
    place = figure, claim["setting"], "recompute vs swap", claim["quantity"]
    return Finding(*place, f"swap/recompute {text}", float(min(margins)))


def tails_over_whole(figure: str, table: pd.DataFrame) -> list[Finding]:
    """Recomputed tokens by block size if only tails are evicted, in percent of whole groups."""
    if not {TAILS, "recompute"} <= set(table["system"]):
        return []
    tokens = table.pivot_table(index="block_size", columns="system", values="recomputed_tokens")
    percent = (100 * tokens[TAILS] / tokens["recompute"]).reset_index(name="percent")
    return reported(
        figure,
        percent,
        "blocks of {block_size}",
        TAILS,
        {"percent": "recomputed tokens (% of whole groups)"},
    )


@dataclass(kw_only=True)
class KernelCost(BlockSizes):
    """Block sizes, and a table of `testbed gpu bench` in kernels/results.

    best: the paper's claims on the curves.
    """

    best: Sequence[Mapping[str, Any]]
    bench: str

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return [
            Task("fig18a", partial(measured_kernels, bench=self.bench)),
            *super().tasks(num_seeds),
        ]

    def only(self, rows: Collection[RowKey]) -> Self:
        """The claims of these rows, and the curves that they are about."""
        places = {(figure, setting) for figure, setting, *_ in rows}
        best = [claim for claim in self.best if (self.figure, claim["setting"]) in places]
        curves = [(claim["setting"], "vllm") for claim in best]
        variants = [
            variant
            for variant in self.variants
            if (variant["setting"], variant["system"]) in curves
        ]
        return replace(self, best=best, variants=variants)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        times = table[table["figure"] == "fig18a"].pivot_table(
            index=["batch", "context"], columns="system", values="simulated"
        )
        over = 100 * (times.div(times["contiguous"], axis=0) - 1)
        served = table[table["figure"] == self.figure]
        curves = served.groupby(["setting", "system", "block_size"])["simulated"].mean()
        ours, theirs = (tuple(over[name].tolist()) for name in ("paged", "paper"))
        place = "fig18a", "attention kernel batch 8 and 32 context 64..256"
        return [
            Finding(*place, "paged vs contiguous", "kernel_overhead", ours, note=OURS),
            Finding(*place, "paper's kernel vs contiguous", "kernel_overhead", theirs, note=THEIRS),
            *(
                best_sizes(self.figure, claim, curves[claim["setting"], "vllm"])
                for claim in self.best
            ),
        ]


def measured_kernels(store: RunStore, bench: str) -> list[Row]:
    """The measured microseconds of each kernel at each batch and context of Figure 18a."""
    kernels = [
        {
            "figure": "fig18a",
            "system": row["kernel"],
            "batch": int(row["batch"]),
            "context": int(row["context"]),
            "simulated": row["median_us"],
        }
        for row in kept_rows(bench).to_dict("records")
        if row.get("spread") == "equal" and row["kernel"] in KERNELS.get(row["what"], ())
    ]
    if not kernels:
        raise InputError(
            key=f"kernels/results/{bench}",
            problem="has no rows of Figure 18a",
            remedy="write it by testbed gpu bench",
        )
    return kernels


@dataclass(kw_only=True)
class Recovery(BlockSizes):
    """Block sizes, and the time to recover num_tokens tokens on each of `machines`.

    drawn_share: the share of a recompute's time that the published figure shows; findings are
    compared with the figure. compare: the paper's claims on the curves.
    """

    compare: Mapping[str, Any]

    num_tokens: int
    machines: Mapping[str, Sequence[str]]
    drawn_share: float
    swap_ends: Sequence[float]
    swap_tolerance: float

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return [Task("fig19a", self.recoveries), *super().tasks(num_seeds)]

    def only(self, rows: Collection[RowKey]) -> Self:
        """The compared variants, and the first machine, of which the published times are."""
        variants = list[Mapping[str, Any]]()
        if self.figure in {key[0] for key in rows}:
            variants = [variant for variant in self.variants if variant["system"] in COMPARED]
        return replace(self, variants=variants, machines=dict(islice(self.machines.items(), 1)))

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        first = next(iter(self.machines))
        costs = table[(table["figure"] == "fig19a") & (table["setting"] == first)]
        ms = costs.pivot_table(index="block_size", columns="system", values="simulated")
        recompute, swap = ms[AS_DRAWN], ms["swap in"] + ms["swap out"]
        ends = float(swap.iloc[0]), float(swap.iloc[-1])
        apart = max(abs(a / b - 1) for a, b in zip(ends, self.swap_ends, strict=True))
        near = 1 - apart / self.swap_tolerance if swap.is_monotonic_decreasing else -1.0
        sizes = "fig19a", "block sizes 1..256"
        flat = 1 - float(recompute.max() / recompute.min() - 1) / FLAT
        excess = float(100 * (recompute / swap - 1).max())
        served = table[table["figure"] == self.figure]
        curves = served.groupby(["setting", "system", "block_size"])["simulated"].mean()
        return [
            Finding(*sizes, "recompute", "overhead", float(recompute.mean()), flat, note=PEAK),
            Finding(
                *sizes, "swap in + out", "overhead", f"{ends[0]:.0f} falling to {ends[1]:.0f}", near
            ),
            Finding(
                figure="fig19a",
                setting="all block sizes",
                system="recompute vs swap",
                quantity="overhead_excess_max",
                simulated=excess,
                note=PEAK,
            ),
            *tails_over_whole(self.figure, served),
            *([comparable_sizes(self.figure, self.compare, curves)] if len(served) else []),
        ]

    def recoveries(self, store: RunStore) -> list[Row]:
        """Milliseconds to recover one sequence, by the cost model."""
        rows = []
        for machine, size in product(self.machines, self.block_sizes):
            config = store.config((*self.machines[machine], f"policy.block_size={size}"))
            cost = cost_of(config)
            blocks = ceil_div(self.num_tokens, size)
            works = {
                # One request, so that its software time counts
                "recompute": Work(prefill=((self.num_tokens, 0),), num_requests=1),
                "swap in": Work(moves=(Moved(HOST, DEVICE, size, blocks),)),
                "swap out": Work(moves=(Moved(DEVICE, HOST, size, blocks),)),
            }
            base = {"figure": "fig19a", "setting": machine, "block_size": size}
            ms = {name: cost.iteration(work) / PS * 1e3 for name, work in works.items()}
            ms[AS_DRAWN] = self.drawn_share * ms["recompute"]
            rows += [{**base, "system": name, "simulated": value} for name, value in ms.items()]
        return rows
