"""Deployments that are left of a space before a simulation, and the reasons of the others."""

import json
from collections.abc import Sequence
from dataclasses import replace

from testbed.core.errors import AnswerIsNo, DoesNotFit, DoesNotStart, InputError
from testbed.experiments.plan.bounds import DOES_NOT_FIT
from testbed.experiments.plan.space import Candidate, Deployment, candidate_of
from testbed.experiments.plan.verdicts import REFUSED, Pruned, check_one_reason
from testbed.experiments.runs.error_lines import error_behind, errors_behind
from testbed.run.build import build
from testbed.run.config import RunConfig
from testbed.run.workload import make_workload

SIZE = "number of GPUs"
SAME = "same run"


def examined(
    space: Sequence[Deployment], num_gpus: int | None
) -> tuple[list[Candidate], list[Pruned]]:
    """The candidates of a space, and the deployments that are ruled out. num_gpus: GPUs of each
    candidate; None: any number.

    Raises InputError if one reason other than memory rules every deployment out: the words of the
    command are wrong.
    """
    candidates, pruned = list[Candidate](), list[Pruned]()
    of_run = dict[str, Candidate]()
    for deployment in space:
        checked = _checked(deployment, num_gpus)
        if isinstance(checked, Pruned):
            pruned.append(checked)
            continue
        first = of_run.setdefault(_text(checked.as_simulated), checked)
        if first is checked:
            candidates.append(checked)
        else:
            pruned.append(Pruned(deployment, SAME, f"has the runs of {first.deployment.name}"))
    if len(pruned) == len(space) and pruned and pruned[0].limit == REFUSED:
        check_one_reason([ruled_out for ruled_out in pruned if ruled_out.limit == REFUSED])
    return candidates, pruned


def check_not_empty(candidates: Sequence[Candidate], pruned: Sequence[Pruned]) -> None:
    """Raise AnswerIsNo that says which check emptied the space."""
    if candidates:
        return
    counts = dict[str, list[Pruned]]()
    for ruled_out in pruned:
        counts.setdefault(ruled_out.limit, []).append(ruled_out)
    texts = [
        f"{len(them)} ({limit}, such as {them[0].deployment.name}: {them[0].reason})"
        for limit, them in counts.items()
    ]
    raise AnswerIsNo(
        key="the space",
        problem=f"no deployment of {len(pruned)} is left: {'; '.join(texts)}",
        remedy="give other values",
    )


def _checked(deployment: Deployment, num_gpus: int | None) -> Candidate | Pruned:
    """The candidate, if its parts can be built."""
    try:
        candidate = candidate_of(deployment)
        if num_gpus is not None and candidate.num_gpus != num_gpus:
            return Pruned(deployment, SIZE, f"has {candidate.num_gpus} GPUs, not {num_gpus}")
        build(candidate.config, make_workload(candidate.config))
    except InputError as error:
        if error_behind(error, OSError):
            raise
        first = _first(error)
        is_small = isinstance(first, DoesNotFit | DoesNotStart)
        return Pruned.by(first, deployment, DOES_NOT_FIT if is_small else REFUSED)
    return candidate


def _first(error: InputError) -> InputError:
    """The InputError that others wrap."""
    return [other for other in errors_behind(error) if isinstance(other, InputError)][-1]


def _text(config: RunConfig) -> str:
    return json.dumps(replace(config, outputs="summary").values, sort_keys=True, default=str)
