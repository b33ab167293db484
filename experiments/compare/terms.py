"""A simulated run against a GPU's: what the simulator's prices say of the very iterations that the GPU ran, by term."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import hydra.utils
import pandas as pd
from omegaconf import OmegaConf

from experiments.compare.finished_run import FinishedRun
from experiments.runs.machine import make_cost, make_machine
from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.cost.model import CostModel, Work
from testbed.cost.work_table import ALWAYS, read_work

SOFTWARE = "software"
MEASURED = ("duration_s", "gpu_s")


class Term(NamedTuple):
    """One part of the price: what iterations of one kind took by the clock, and by the simulator's prices, in seconds.

    share_points: the error in points of the GPU run's busy time, which is what a reader should mend first.
    """

    term: str
    iterations: int
    measured_s: float
    priced_s: float
    share_points: float

    @property
    def error_s(self) -> float:
        """Priced less measured: above 0, the simulator asks too much."""
        return self.priced_s - self.measured_s

    @property
    def error_percent(self) -> float | None:
        """Of what was measured."""
        return 100 * self.error_s / self.measured_s if self.measured_s else None


def terms(simulated: FinishedRun, real: FinishedRun) -> list[Term]:
    """The terms, the largest error first. Kernels are told by what an iteration does; software is the gaps between.

    An engine on a CPU has no clock of a GPU: its iterations are compared as wholes.
    """
    table = priced(simulated, real)
    busy_s = float(table["duration_s"].sum())
    if table["gpu_s"].any():
        rows = [(f"kernels: {kind}", part["gpu_s"], part["kernels_s"]) for kind, part in table.groupby("kind")]
        rows.append((SOFTWARE, table["duration_s"] - table["gpu_s"], table["price_s"] - table["kernels_s"]))
    else:
        rows = [(f"all of: {kind}", part["duration_s"], part["price_s"]) for kind, part in table.groupby("kind")]
    found = [_term(name, took, price, busy_s) for name, took, price in rows]
    return sorted(found, key=lambda term: -abs(term.error_s))


def priced(simulated: FinishedRun, real: FinishedRun) -> pd.DataFrame:
    """The GPU run's iterations with kind, price_s and kernels_s, the price without software."""
    table = real.spans
    if table is None:
        raise InputError(f"{real.folder}: has no iterations.csv, so no cost term can be compared")
    absent = [name for name in (*MEASURED, *ALWAYS) if name not in table]
    if absent:
        raise InputError(f"{real.folder}/iterations.csv: has no column {absent[0]}, so no cost term can be compared")
    works = [read_work(row) for row in table.to_dict("records")]
    whole, kernels = cost_models(simulated.config)
    prices = {"price_s": [whole.iteration(work) / PS for work in works],
              "kernels_s": [kernels.iteration(work) / PS for work in works]}  # fmt: skip
    return table[list(MEASURED)].assign(kind=[kind_of(work) for work in works], **prices)


def kind_of(work: Work) -> str:
    """What an iteration does."""
    main = [name for name, there in (("decodes", work.decode_seqs), ("prompts", work.prefill)) if there]
    beside = [name for name, there in (("swaps", work.moves), ("copies", work.copies)) if there]
    return " and ".join(main or ["nothing"]) + "".join(f", {name}" for name in beside)


def cost_models(config: dict[str, Any]) -> tuple[CostModel, CostModel]:
    """The cost model of a run's config, and the same one with every software time at nothing."""
    node = OmegaConf.create(config)
    bare = OmegaConf.create({**config, "cost": without_software(config["cost"])})
    machine = make_machine(node)
    return make_cost(node, *machine), make_cost(bare, *machine)


def without_software(cost: dict[str, Any]) -> dict[str, Any]:
    """The node of a cost model whose overheads, as its classes name them, are 0."""
    bare = deepcopy(cost)
    for part in _nodes(bare):
        target = hydra.utils.get_object(part["_target_"])
        if is_dataclass(target):
            part |= {field.name: 0.0 for field in fields(target) if field.name.startswith("overhead")}
    return bare


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "_target_" in value:
            yield value
        for inner in value.values():
            yield from _nodes(inner)


def _term(name: str, took: pd.Series, price: pd.Series, busy_s: float) -> Term:
    measured, asked = float(took.sum()), float(price.sum())
    return Term(name, len(took), measured, asked, 100 * (asked - measured) / busy_s if busy_s else 0.0)
