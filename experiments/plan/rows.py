"""The rows of a plan's table: numbers of each deployment, by verdict."""

from collections.abc import Iterable
from dataclasses import dataclass

from testbed.experiments.plan.cost_errors import error_between, not_comparable, of_both
from testbed.experiments.plan.deployment_plan import Plan
from testbed.experiments.plan.jobs import Outcome
from testbed.experiments.plan.space import Candidate
from testbed.experiments.plan.verdicts import Dearer, Keeps, Misses, Simulated, rate_of
from testbed.experiments.runs.run_words import way_of

CHEAPEST, LEAST = "cheapest", "least by these costs"


@dataclass(frozen=True)
class Row:
    """One deployment. Numbers that a verdict lacks are None; text cells are empty.

    verdict: keeps, misses, dearer (simulated until that was certain) or pruned (not simulated).
    limit: of the deployment, or the check that excluded it; reason: its numbers.
    rank: 1 for the cheapest that keeps the SLO. rate: requests/s of the runs, mean of the seeds.
    per_million_requests, per_million_tokens (of output): at that rate, in the plan's unit, with
    half of the 95% interval of the former. difference: from the cheapest, seed by seed. per_gpu:
    output tokens/s of a GPU; per_user: those of a request, 1 / mean TPOT. way: where the times of
    its iterations come from. runs: the folder of each seed's run.
    """

    deployment: dict[str, str]
    verdict: str
    limit: str
    reason: str = ""
    rank: int | None = None
    gpus: int | None = None
    hourly: float | None = None
    rate: float | None = None
    per_million_requests: float | None = None
    half_width: float | None = None
    per_million_tokens: float | None = None
    difference: str = ""
    share_inside: float | None = None
    per_gpu: float | None = None
    per_user: float | None = None
    way: str = ""
    runs: tuple[str, ...] = ()


def rows_of(plan: Plan) -> list[Row]:
    """Rows of deployments that keep the SLO by rank, then what misses it, what is dearer, what was
    pruned.
    """
    ranked = plan.ranked
    kept = [_kept(verdict, rank, plan) for rank, verdict in enumerate(ranked, 1)]
    missed, dearer = map(_row, plan.misses), map(_row, plan.dearer)
    pruned = (Row(dict(of.deployment.chosen), "pruned", of.limit, of.reason) for of in plan.pruned)
    return [*kept, *missed, *dearer, *pruned]


def per_gpu(candidate: Candidate, outcome: Outcome) -> float:
    """Output tokens/s of a GPU."""
    return rate_of(candidate, outcome) * _output_len(outcome) / candidate.num_gpus


def per_user(outcome: Outcome) -> float | None:
    """Output tokens/s of a request; None if outputs have one token."""
    time_s = outcome.summary["tpot_s"]["mean"]
    return 1 / time_s if time_s else None


def _difference(verdict: Keeps, plan: Plan) -> str:
    """Its difference from the cheapest, if the errors of costs of another origin cannot turn it."""
    best = plan.ranked[0]
    if verdict is best:
        return LEAST if plan.incomparable else CHEAPEST
    error = error_between(verdict.candidate, best.candidate)
    if verdict in plan.incomparable:
        return not_comparable(error)
    return f"{plan.mode.difference(verdict, best)}{of_both(error)}"


def _kept(verdict: Keeps, rank: int, plan: Plan) -> Row:
    row, cost = _row(verdict), verdict.cost
    tokens = _mean(_output_len(outcome) for outcome in verdict.outcomes)
    speeds = [speed for outcome in verdict.outcomes if (speed := per_user(outcome)) is not None]
    numbers = {
        "rank": rank,
        "per_million_requests": cost.mean,
        "half_width": cost.half_width,
        "per_million_tokens": cost.mean / tokens if tokens else None,
        "difference": _difference(verdict, plan),
        "per_gpu": _mean(per_gpu(verdict.candidate, outcome) for outcome in verdict.outcomes),
        "per_user": _mean(speeds) if speeds else None,
    }
    return Row(**{**vars(row), **numbers})


def _row(verdict: Simulated) -> Row:
    candidate, outcomes = verdict.candidate, verdict.outcomes
    return Row(
        deployment=dict(candidate.deployment.chosen),
        verdict={Keeps: "keeps", Misses: "misses", Dearer: "dearer"}[type(verdict)],
        limit=verdict.limit,
        reason=_reason(verdict),
        gpus=candidate.num_gpus,
        hourly=verdict.hourly,
        rate=_mean(rate_of(candidate, outcome) for outcome in outcomes),
        share_inside=_mean(outcome.share_inside for outcome in outcomes),
        way=way_of(outcomes[0].summary),
        runs=tuple(outcome.run_id for outcome in outcomes),
    )


def _reason(verdict: Simulated) -> str:
    if isinstance(verdict, Misses):
        return verdict.what
    return verdict.reason if isinstance(verdict, Dearer) else ""


def _output_len(outcome: Outcome) -> float:
    """Mean output tokens of a request."""
    rates = outcome.summary["throughput"]
    requests = rates["requests_per_s"]
    return float(rates["output_tokens_per_s"] / requests) if requests else 0.0


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
