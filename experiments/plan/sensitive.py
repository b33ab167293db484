"""The sensitivity of a plan's cheapest deployment to costs and arrivals."""

from testbed.experiments.plan.deployment_plan import Plan
from testbed.experiments.plan.jobs import SUMMARIES, Outcome
from testbed.run.config import RunConfig
from testbed.run.result import front_end
from testbed.study.cost_spread import rule
from testbed.study.sensitivity import (
    capacity_intervals,
    check_scalable,
    share_inside,
    variations,
)


def sensitive_lines(plan: Plan) -> list[str]:
    """The varied values, and the interval of the cheapest deployment with its first seed; nothing
    if none keeps the SLO.

    Raises:
        InputError: not all times of the deployment's run scale with its costs.
    """
    if not plan.ranked:
        return []
    best = plan.ranked[0]
    outcome = best.outcomes[0]
    config = front_end().configure(
        best.candidate.deployment.words, {**SUMMARIES, "seed": outcome.seed}
    )
    name = f"{best.candidate.deployment.name}, seed {outcome.seed}"
    return [f"how sensitive, {name}: {rule(config)}", f"  {_interval(plan, config, outcome)}"]


def _interval(plan: Plan, config: RunConfig, outcome: Outcome) -> str:
    """The interval of the share inside at the given load; of the highest rate too, if that was
    searched.
    """
    if outcome.rate is not None:
        question = plan.question
        found = capacity_intervals(config, outcome.rate, question.share, question.precision)
        (low, high), inside = found.rate, found.share_inside
        return f"{low:.3g} to {high:.3g} req/s, by costs; {_share(*inside)} at the rate found"
    check_scalable(config)
    shares = [outcome.share_inside, *map(share_inside, variations(config))]
    return _share(min(shares), max(shares))


def _share(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {100 * high:.1f}% inside"
