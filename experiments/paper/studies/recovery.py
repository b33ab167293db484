"""Recompute against swap: the price of one recovery, and end to end, by block size (Figure 19)."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import pandas as pd

from experiments.paper.studies.blocks import BlockSizes
from experiments.paper.studies.study import Finding, Row, RowKey, Task
from experiments.runs.lab import Lab
from experiments.runs.machine import make_cost, make_machine
from testbed.core.request import PS
from testbed.core.slots import DEVICE, HOST, ceil_div
from testbed.cost.model import Moved, Work

FLAT = 0.10
AS_DRAWN = "recompute as drawn"


class Recovery(BlockSizes):
    """Block sizes, and what the cost model asks for recovering num_tokens tokens in each of `machines`.

    drawn_share: what the published figure shows of a measured recompute; findings are compared with the figure.
    """

    def __init__(
        self,
        num_tokens: int,
        machines: Mapping[str, Sequence[str]],
        drawn_share: float,
        swap_ends: Sequence[float],
        swap_tolerance: float,
        **rest: Any,
    ) -> None:
        super().__init__(**rest)
        self.num_tokens = num_tokens
        self.machines = machines
        self.drawn_share = drawn_share
        self.swap_ends = swap_ends
        self.swap_tolerance = swap_tolerance

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return [Task("fig19a", partial(recoveries, study=self)), *super().tasks(num_seeds)]

    def only(self, rows: Collection[RowKey]) -> "Recovery":
        """Published prices are of the first machine; an alternative of its need not be one of the others'."""
        fewer = super().only(rows)
        assert isinstance(fewer, Recovery)
        fewer.machines = dict(islice(self.machines.items(), 1))
        return fewer

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        first = next(iter(self.machines))
        prices = table[(table["figure"] == "fig19a") & (table["setting"] == first)]
        ms = prices.pivot_table(index="block_size", columns="system", values="simulated")
        recompute, swap = ms[AS_DRAWN], ms["swap in"] + ms["swap out"]
        ends = float(swap.iloc[0]), float(swap.iloc[-1])
        apart = max(abs(a / b - 1) for a, b in zip(ends, self.swap_ends, strict=True))
        near = 1 - apart / self.swap_tolerance if swap.is_monotonic_decreasing else -1.0
        sizes = "fig19a", "block sizes 1..256"
        flat = 1 - float(recompute.max() / recompute.min() - 1) / FLAT
        excess = float(100 * (recompute / swap - 1).max())
        return [
            Finding(*sizes, "recompute", "overhead", float(recompute.mean()), flat, note=self._peak()),
            Finding(
                *sizes, "swap in + out", "overhead", f"{ends[0]:.0f} falling to {ends[1]:.0f}", near
            ),
            Finding("fig19a", "all block sizes", "recompute vs swap", "overhead_excess_max", excess, note=self._peak()),
            *super().findings(table[table["figure"] == self.figure]),
        ]  # fmt: skip

    def _peak(self) -> str:
        return "20 ms for 256 tokens of 13B parameters would be more than the A100's peak allows: 21 ms at 312 TFLOP/s"


def recoveries(lab: Lab, study: Recovery) -> list[Row]:
    """Milliseconds to recover one sequence, by the cost model's own prices."""
    return [
        row
        for machine, overrides in study.machines.items()
        for size in study.block_sizes
        for row in _prices(lab, machine, (*overrides, f"policy.block_size={size}"), size, study)
    ]


def _prices(lab: Lab, machine: str, overrides: Sequence[str], size: int, study: Recovery) -> list[Row]:
    """Each price, and of a recompute also what the published figure would show."""
    config = lab.config(overrides)
    cost = make_cost(config, *make_machine(config))
    num_tokens, blocks = study.num_tokens, ceil_div(study.num_tokens, size)
    works = {
        "recompute": Work(prefill=((num_tokens, 0),)),
        "swap in": Work(moves=(Moved(HOST, DEVICE, size, blocks),)),
        "swap out": Work(moves=(Moved(DEVICE, HOST, size, blocks),)),
    }
    base = {"figure": "fig19a", "setting": machine, "block_size": size}
    ms = {name: cost.iteration(work) / PS * 1e3 for name, work in works.items()}
    ms[AS_DRAWN] = study.drawn_share * ms["recompute"]
    return [{**base, "system": name, "simulated": value} for name, value in ms.items()]
