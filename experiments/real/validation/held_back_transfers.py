"""Two tests of measured transfers: points held back, and the transfers of runs on a GPU."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd

from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.core.slots import DEVICE, HOST
from testbed.cost.link_times import GATHER, INTO, KERNEL, OUT, LinkTimes
from testbed.cost.model import Affine, CostModel, Moved, Work
from testbed.cost.profile import ProfileCost
from testbed.cost.sections import Rows
from testbed.cost.swap_overlap import swapped
from testbed.experiments.runs.run_folder import read_config
from testbed.run.build import build
from testbed.run.simulate import run_setup

EVERY = 5
BY_METHOD = ("way", "method", "points", "held back", "median error, %", "90th percentile, %")
MOVED = ("run", "way", "transfers", "GB", "GPU, ms", "by its extents, ms", "simulated, ms")
WAYS = {  # the direction on the link of swaps, and of transfers to and from a tier
    "out": OUT,
    "in": INTO,
    "store": OUT,
    "load": INTO,
}


def held_back(points: Rows) -> list[tuple[str, str, float]]:
    """Way, method and relative error of every fifth point, predicted from the other points."""
    times = LinkTimes([point for place, point in enumerate(points) if place % EVERY])
    return [
        (way, method, times(method, way, count, count * size, block) / ps - 1)
        for (method, way, count, size, block), ps in points[::EVERY]
    ]


def by_method(points: Rows) -> Iterator[list[str]]:
    """Rows of BY_METHOD; errors are the sizes of the held-back points' errors in percent."""
    counts = Counter((way, method) for (method, way, *_), _ in points)
    errors = pd.DataFrame(held_back(points), columns=["way", "method", "error"])
    for key, rows in errors.groupby(["way", "method"], sort=False):
        own = rows["error"].abs() * 100
        yield [
            *key,
            f"{counts[key]}",
            f"{len(own)}",
            f"{own.median():.1f}",
            f"{own.quantile(0.9):.1f}",
        ]


class TransferTotals(CostModel):
    """The costs of a run; ps: the total time of its swaps and transfers by way, each alone."""

    def __init__(self, cost: ProfileCost) -> None:
        self._cost = cost
        self.ps = Counter[str]()

    def iteration(self, work: Work) -> int:
        for way, moves in swapped(work.moves).items():
            self.ps[way] += self._cost.swap_ps(way, moves)
        # An iteration writes evicted blocks to a tier; loads are transfers of their own.
        written = tuple(move for move in work.moves if HOST not in (move.source, move.target))
        if written:
            self.transfer(written)
        return self._cost.iteration(work)

    def decode(self, work: Work) -> Affine:
        return self._cost.decode(work)

    def transfer(self, moves: tuple[Moved, ...]) -> int:
        duration_ps = self._cost.transfer(moves)
        self.ps["load" if moves[0].target == DEVICE else "store"] += duration_ps
        return duration_ps


def engine_transfers(folder: Path, plug_ins: Collection[str] = ()) -> list[list[str]]:
    """Rows of MOVED: the transfers of a run on a GPU, by way.

    Milliseconds are measured, from the table for the engine's extents, and of the simulated run.
    """
    config = read_config(folder, plug_ins)
    setup = build(replace(config, engine=None))
    if not isinstance(setup.cost, ProfileCost) or setup.cost.link is None:
        raise InputError(
            key=folder,
            problem="its costs have no measured transfers",
            remedy="give server.gpu.transfers",
        )
    totals, link = TransferTotals(setup.cost), setup.cost.link
    run_setup(replace(setup, cost=totals))
    swaps = pd.read_csv(folder / "swaps.csv")
    block_bytes = link.plane_bytes * (setup.scheduler.memory.block_size or 1)
    lines = []
    for way, simulated_ps in (+totals.ps).items():
        own = swaps[swaps["way"] == way]
        measured, gigabytes = 1e3 * own["seconds"].sum(), own["num_bytes"].sum() / 1e9
        sizes = zip(own["num_extents"].tolist(), own["num_bytes"].tolist(), strict=True)
        method, cell = (KERNEL, 0) if link.times.has(KERNEL, WAYS[way]) else (GATHER, block_bytes)
        by_extents = sum(link.times(method, WAYS[way], count, size, cell) for count, size in sizes)
        predictions = [
            f"{ms:.1f} ({100 * (ms / measured - 1):+.1f}%)"
            for ms in (1e3 / PS * by_extents, 1e3 / PS * simulated_ps)
        ]
        counts = f"{len(own)}", f"{gigabytes:.2f}", f"{measured:.1f}"
        lines.append([folder.name, way, *counts, *predictions])
    return lines
