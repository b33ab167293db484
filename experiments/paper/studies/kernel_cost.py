"""What paging costs: the attention kernels as measured, and end to end by block size (Figure 18)."""

import csv
from functools import partial
from importlib import resources
from typing import Any

import pandas as pd

from experiments.paper.studies.blocks import BlockSizes
from experiments.paper.studies.study import Finding, Row, Task
from experiments.runs.lab import Lab
from testbed.core.errors import InputError

KERNELS = {"paging cost": ("paged", "contiguous"), "the paper's design": ("paper",)}
OURS = "the testbed's own kernel"
THEIRS = "the 2023 system's design, measured on an H200, where the paper has an A100 and FasterTransformer's kernel"


class KernelCost(BlockSizes):
    """Block sizes, and the table that `testbed bench-kernels` has left in kernels/results."""

    def __init__(self, bench: str, **rest: Any) -> None:
        super().__init__(**rest)
        self.bench = bench

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return [Task("fig18a", partial(measured_kernels, bench=self.bench)), *super().tasks(num_seeds)]

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        times = table[table["figure"] == "fig18a"].pivot_table(
            index=["batch", "context"], columns="system", values="simulated"
        )
        overhead = 100 * (times["paged"] / times["contiguous"] - 1)
        design = 100 * (times["paper"] / times["contiguous"] - 1)
        place = "fig18a", "attention kernel batch 8 and 32 context 64..256"
        return [
            Finding(*place, "paged vs contiguous", "kernel_overhead", tuple(map(float, overhead)), note=OURS),
            Finding(*place, "paper's kernel vs contiguous", "kernel_overhead", tuple(map(float, design)), note=THEIRS),
            *super().findings(table[table["figure"] == self.figure]),
        ]


def measured_kernels(lab: Lab, bench: str) -> list[Row]:
    """Microseconds of each kernel at each batch and context of Figure 18a, as the bench measured them."""
    text = (resources.files("kernels") / "results" / bench).read_text(encoding="utf-8")
    lines = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    found = [_row(line) for line in lines if line.get("spread") == "equal" and _drawn(line)]
    if not found:
        raise InputError(f"kernels/results/{bench} has no rows of Figure 18a; write it by testbed bench-kernels")
    return found


def _drawn(line: dict[str, str]) -> bool:
    return line["kernel"] in KERNELS.get(line["what"], ())


def _row(line: dict[str, str]) -> Row:
    shape = {"batch": int(line["batch"]), "context": int(line["context"])}
    return {"figure": "fig18a", "system": line["kernel"], **shape, "simulated": float(line["median_us"])}
