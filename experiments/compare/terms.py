"""Cost terms: the simulator's cost model, evaluated on the GPU's iterations, against their measured times."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

import pandas as pd

from testbed.config import ServerConfig
from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.core.specs import ModelSpec
from testbed.cost.model import ALWAYS, CostModel, Work, read_work
from testbed.experiments.compare.finished_run import FinishedRun
from testbed.experiments.runs.one_line import one_line
from testbed.machine import make_cost
from testbed.parts import Part, locate
from testbed.schema import read

SOFTWARE = "software"
MEASURED = ("duration_s", "gpu_s")


class Term(NamedTuple):
    """One cost term: seconds that iterations of one kind took on the GPU, and by the simulator's cost model.

    share_points: the error in points of the GPU run's busy time; the largest matters most.
    """

    term: str
    iterations: int
    measured_s: float
    predicted_s: float
    share_points: float

    @property
    def error_s(self) -> float:
        """Predicted minus measured seconds: above 0, the simulator is too slow."""
        return self.predicted_s - self.measured_s

    @property
    def error_percent(self) -> float | None:
        """The error in percent of the measured time."""
        return 100 * self.error_s / self.measured_s if self.measured_s else None


def terms(simulated: FinishedRun, real: FinishedRun) -> list[Term]:
    """The terms, the largest error first: kernels by kind of iteration, and software, the time between kernels.

    An engine on a CPU measures no GPU time: its iterations are compared as a whole.
    """
    table = predicted(simulated, real)
    busy_s = float(table["duration_s"].sum())
    if table["gpu_s"].any():
        rows = [(f"kernels: {kind}", part["gpu_s"], part["kernels_s"]) for kind, part in table.groupby("kind")]
        rows.append((SOFTWARE, table["duration_s"] - table["gpu_s"], table["cost_s"] - table["kernels_s"]))
    else:
        rows = [(f"all of: {kind}", part["duration_s"], part["cost_s"]) for kind, part in table.groupby("kind")]
    found = [_term(name, took, predicted_s, busy_s) for name, took, predicted_s in rows]
    return sorted(found, key=lambda term: -abs(term.error_s))


def blame(runs: Sequence[FinishedRun]) -> tuple[dict[tuple[str, str], list[Term]], list[str]]:
    """The cost terms of every simulated run against every GPU's, and remarks on pairs that have none."""
    found, remarks = {}, []
    for a, b in [(a, b) for a in runs for b in runs if not a.on_gpu and b.on_gpu]:
        try:
            found[a.name, b.name] = terms(a, b)
        except InputError as error:
            remarks.append(f"no cost terms of {a.name} against {b.name}: {one_line(error)}")
    return found, remarks


def predicted(simulated: FinishedRun, real: FinishedRun) -> pd.DataFrame:
    """The GPU run's iterations with kind, predicted cost_s, and kernels_s, the cost without software, in seconds."""
    table = real.spans
    if table is None:
        raise InputError(f"{real.folder}: has no iterations.csv, so no cost term can be compared")
    absent = [name for name in (*MEASURED, *ALWAYS) if name not in table]
    if absent:
        raise InputError(f"{real.folder}/iterations.csv: has no column {absent[0]}, so no cost term can be compared")
    works = [read_work(row) for row in table.to_dict("records")]
    whole, kernels = cost_models(simulated.config)
    predictions = {"cost_s": [whole.iteration(work) / PS for work in works],
              "kernels_s": [kernels.iteration(work) / PS for work in works]}  # fmt: skip
    return table[list(MEASURED)].assign(kind=[kind_of(work) for work in works], **predictions)


def kind_of(work: Work) -> str:
    """The kind of an iteration as text."""
    main = [name for name, there in (("decodes", work.decode_seqs), ("prompts", work.prefill)) if there]
    also = [name for name, there in (("swaps", work.moves), ("copies", work.copies)) if there]
    return " and ".join(main or ["nothing"]) + "".join(f", {name}" for name in also)


def cost_models(config: dict[str, Any]) -> tuple[CostModel, CostModel]:
    """The cost model of a run's config, and the same one with all software times set to 0."""
    cost = Part.from_values(config["cost"], "cost")
    machine = read(ModelSpec, config["model"], "model"), ServerConfig.from_values(config["server"], "server")
    return make_cost(cost, *machine), make_cost(without_software(cost), *machine)


def without_software(cost: Part) -> Part:
    """The cost model whose overheads, as its classes name them, are 0."""
    nested = {key: without_software(value) for key, value in cost.parameters.items() if isinstance(value, Part)}
    target = locate(cost.target, "cost")
    none = [field.name for field in fields(target) if field.name.startswith("overhead")] if is_dataclass(target) else []
    return replace(cost, parameters={**cost.parameters, **nested, **dict.fromkeys(none, 0.0)})


def _term(name: str, took: pd.Series, predicted_s: pd.Series, busy_s: float) -> Term:
    measured, predicted = float(took.sum()), float(predicted_s.sum())
    return Term(name, len(took), measured, predicted, 100 * (predicted - measured) / busy_s if busy_s else 0.0)
