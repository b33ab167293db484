"""The answer of `testbed plan --json`."""

from dataclasses import dataclass

from testbed.experiments.plan.deployment_plan import Plan
from testbed.experiments.plan.rows import Row, rows_of


@dataclass(frozen=True)
class PlanAnswer:
    """slo: the objectives in s by name; share: of the requests that must keep them. unit: of costs.
    lines: what the command prints above its tables. deployments: the rows of the tables, in order.
    """

    slo: dict[str, float]
    share: float
    seeds: tuple[int, ...]
    unit: str
    num_simulations: int
    lines: list[str]
    deployments: list[Row]


def plan_answer(plan: Plan, lines: list[str]) -> PlanAnswer:
    """The question, the counts and every row. lines: what the command prints above its tables."""
    question = plan.question
    return PlanAnswer(
        slo=question.objectives,
        share=question.share,
        seeds=question.seeds,
        unit=plan.prices.unit,
        num_simulations=plan.num_simulations,
        lines=lines,
        deployments=rows_of(plan),
    )
