"""The cost terms of a simulated run against a run on a GPU: how many seconds each part of the cost
model is wrong.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import pandas as pd

from testbed.core.config_model import read
from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.core.specs import ModelSpec
from testbed.cost.model import ALWAYS, CostModel, Work, read_work
from testbed.engine.host_launches import Replay, Served
from testbed.experiments.look.compare.finished_run import FinishedRun
from testbed.experiments.runs.error_lines import one_line
from testbed.experiments.runs.known_classes import check_classes
from testbed.run.config import ServerConfig
from testbed.run.machine import in_blocks, make_cost
from testbed.run.parts import Part, locate
from testbed.run.speculating import SPECULATION, speculative_cost

SOFTWARE = "software"
MEASURED = ("start_s", "duration_s", "gpu_s")
AT_ONCE_S = 1e-9  # an iteration begins so soon after the one before: times have twelve digits


class Term(NamedTuple):
    """A cost term: the seconds of one kind of iterations, measured and by the cost model.

    share_points: the error in percent of the GPU run's busy time.
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
    """The cost terms, the largest error first.

    They are the kernels by kind of iteration, and software, the time between kernels. An engine on
    a CPU measures no GPU time, so its iterations are compared as a whole.
    """
    table = predicted(simulated, real)
    busy_s = float(table["duration_s"].sum())
    if table["gpu_s"].any():
        rows = [
            (f"kernels: {kind}", part["gpu_s"], part["kernels_s"])
            for kind, part in table.groupby("kind")
        ]
        rows.append(
            (SOFTWARE, table["duration_s"] - table["gpu_s"], table["cost_s"] - table["kernels_s"])
        )
    else:
        rows = [
            (f"all of: {kind}", part["duration_s"], part["cost_s"])
            for kind, part in table.groupby("kind")
        ]
    all_terms = []
    for name, measured, by_cost in rows:
        measured_s, predicted_s = float(measured.sum()), float(by_cost.sum())
        share = 100 * (predicted_s - measured_s) / busy_s if busy_s else 0.0
        all_terms.append(Term(name, len(measured), measured_s, predicted_s, share))
    return sorted(all_terms, key=lambda term: -abs(term.error_s))


def explained(
    runs: Sequence[FinishedRun],
) -> tuple[dict[tuple[str, str], list[Term]], list[str]]:
    """The terms of each simulated run against each run on a GPU; remarks on pairs without terms."""
    simulated = [run for run in runs if not run.on_gpu]
    real = [run for run in runs if run.on_gpu]
    terms_of, remarks = {}, []
    for ours, theirs in product(simulated, real):
        try:
            terms_of[ours.name, theirs.name] = terms(ours, theirs)
        except InputError as error:
            remarks.append(f"no cost terms of {ours.name} against {theirs.name}: {one_line(error)}")
    return terms_of, remarks


def predicted(simulated: FinishedRun, real: FinishedRun) -> pd.DataFrame:
    """The GPU run's iterations with their kind, the predicted time (s) and that of kernels (s).

    If the simulated run's cost model has launches, an iteration takes what it does in a simulation
    in which the host launches these iterations in this order.
    """
    table = real.spans
    if table is None:
        raise InputError(
            key=real.folder or real.name,
            problem="has no iterations.csv, so no cost term can be compared",
        )
    absent = [name for name in (*MEASURED, *ALWAYS) if name not in table]
    if absent:
        raise InputError(
            key=f"{real.folder}/iterations.csv",
            problem=f"has no column {absent[0]}, so no cost term can be compared",
        )
    works = [read_work(row) for row in table.to_dict("records")]
    _check_drafts(simulated, works)
    costs, kernels = cost_models(simulated, drafts=real.config.get(SPECULATION) is not None)
    replay = Replay(costs, plans_ahead=plans_ahead(real))
    for served in _served(table, works):
        replay.serve(served)
    return table[list(MEASURED)].assign(
        kind=[kind_of(work) for work in works],
        cost_s=[duration_ps / PS for duration_ps in replay.durations_ps],
        kernels_s=[kernels.iteration(work) / PS for work in works],
    )


def _served(table: pd.DataFrame, works: Sequence[Work]) -> Iterator[Served]:
    """The iterations, each with whether it began when the one before ended."""
    ended_s = (table["start_s"] + table["duration_s"]).shift()
    is_behind = table["start_s"] - ended_s <= AT_ONCE_S
    for work, behind in zip(works, is_behind, strict=True):
        yield Served(work, bool(behind))


def plans_ahead(run: FinishedRun) -> bool:
    """True if the run's scheduler makes a plan while another is in flight."""
    _check_classes(run)
    part = Part.from_values(run.config["scheduler"], "scheduler")
    scheduler: Any = locate(part.target, "scheduler")
    return bool(scheduler.plans_ahead)


def kind_of(work: Work) -> str:
    """The kind of an iteration as text."""
    computed, moved = list[str](), list[str]()
    if work.decode_seqs:
        computed.append("decodes with drafts" if work.draft_tokens else "decodes")
    if work.prefill:
        computed.append("prompts")
    if work.moves:
        moved.append("swaps")
    if work.copies:
        moved.append("copies")
    return ", ".join([" and ".join(computed or ["nothing"]), *moved])


def _check_drafts(simulated: FinishedRun, works: Sequence[Work]) -> None:
    """Raise InputError for iterations with drafts if the simulated run has no costs of them."""
    if simulated.config.get(SPECULATION) is None and any(work.draft_tokens for work in works):
        raise InputError(
            key="the run on a GPU",
            problem="its iterations have drafts, and the simulated run has no speculation=",
            remedy="simulate with that of the run on a GPU",
        )


def cost_models(run: FinishedRun, *, drafts: bool = False) -> tuple[CostModel, CostModel]:
    """The cost model of a run, and the same one with all software times set to 0. drafts: with the
    run's costs of drafts, if it speculates.
    """
    _check_classes(run)
    config = run.config
    policy = Part.from_values(config["policy"], "policy")
    cost = in_blocks(Part.from_values(config["cost"], "cost"), policy)
    model = read(ModelSpec, config["model"], "model")
    server = read(ServerConfig, config["server"], "server")
    costs = make_cost(cost, model, server)
    kernels = make_cost(without_software(cost), model, server)
    if drafts and config.get(SPECULATION) is not None:
        speculation = Part.from_values(config[SPECULATION], SPECULATION).make(SPECULATION)
        costs = speculative_cost(costs, speculation, model, server)
        kernels = speculative_cost(kernels, speculation, model, server)
    return costs, kernels


def _check_classes(run: FinishedRun) -> None:
    """Raise InputError for a class of the folder's config that is neither ours nor named."""
    if run.folder is not None:
        check_classes(run.config, run.folder / "config.yaml", run.plug_ins)


def without_software(cost: Part) -> Part:
    """The cost model with all parameters called overhead... set to 0."""
    nested = {
        key: without_software(value)
        for key, value in cost.parameters.items()
        if isinstance(value, Part)
    }
    overheads = dict[str, float]()
    target = locate(cost.target, "cost")
    if is_dataclass(target):
        names = [field.name for field in fields(target)]
        overheads = {name: 0.0 for name in names if name.startswith("overhead")}
    return replace(cost, parameters={**cost.parameters, **nested, **overheads})
