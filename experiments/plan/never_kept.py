"""Objectives that no rate keeps, by arithmetic, before a search simulates any."""

from testbed.experiments.plan.arithmetic import Arithmetic
from testbed.experiments.plan.bounds import DOES_NOT_FIT, MEMORY
from testbed.experiments.plan.question import Question
from testbed.experiments.plan.space import Candidate, Deployment
from testbed.run.config import RunConfig
from testbed.study.knee import NotSustained


def check_possible(config: RunConfig, share: float) -> None:
    """Raise NotSustained if no rate keeps the objectives of the config for this share of its
    requests. The times of a GPU's engine have no bound.
    """
    if config.engine is not None:
        return
    question = Question(config.slo, share, (config.seed,), precision=0.0)
    reason = Arithmetic(question).too_slow(Candidate(Deployment({}, ()), config))
    if reason is None:
        return
    is_length = reason.limit in (DOES_NOT_FIT, MEMORY)
    raise NotSustained(
        key="slo",
        problem=f"no rate keeps it for {100 * share:g}%: {reason.text}",
        remedy=(
            "send shorter requests, or raise model.max_len or the memory"
            if is_length
            else "raise that objective, or give a faster server"
        ),
    )
