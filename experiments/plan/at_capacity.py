"""The candidates that serve requests within the SLO most cheaply, each at its highest rate.

A search as in `testbed capacity` finds the rate of one candidate. Every other one is challenged
first: is the SLO kept at the rate at which it would cost as much as the cheapest so far, seed by
seed? One that misses there with every seed is dearer with every seed; arithmetic may say so without
a run. Only the others are searched.

Assumption: a candidate that misses the SLO at a rate keeps it at no higher rate, as `testbed
capacity` assumes.
"""

from collections.abc import Sequence
from math import expm1, floor, log, log10

from testbed.experiments.plan.bottlenecks import broken, limit_of
from testbed.experiments.plan.bounds import Reason
from testbed.experiments.plan.cost_errors import error_between
from testbed.experiments.plan.jobs import Failure, Outcome, Searched
from testbed.experiments.plan.plan_search import Search
from testbed.experiments.plan.space import Candidate
from testbed.experiments.plan.verdicts import (
    REFUSED,
    Dearer,
    Keeps,
    Misses,
    Pruned,
    Verdict,
    refused,
)
from testbed.study.replications import NOT_DISTINGUISHABLE, paired, within_step

WAVE = 8  # candidates that are challenged at a time, whatever the launcher
DIGITS = 4  # of a rate


def cheapest_at_capacity(search: Search, candidates: Sequence[Candidate]) -> list[Verdict]:
    """A verdict for each candidate."""
    verdicts = _too_slow(search, candidates)
    waiting = sorted(
        (each for each in candidates if each not in verdicts),
        key=lambda each: search.hourly(each) / search.arithmetic.highest_rate(each),
    )
    best: Keeps | None = None
    while waiting:
        size = 1 if best is None else WAVE
        wave, waiting = waiting[:size], waiting[size:]
        refused = {} if best is None else _challenged(search, wave, best)
        rivals = [each for each in wave if each not in refused]
        verdicts |= refused | dict(zip(rivals, searched(search, rivals), strict=True))
        kept = [verdict for verdict in verdicts.values() if isinstance(verdict, Keeps)]
        best = min(kept, key=rank_at_capacity, default=None)
        search.report(f"{len(verdicts)} of {len(candidates)} deployments")
    return [verdicts[each] for each in candidates]


def all_at_capacity(search: Search, candidates: Sequence[Candidate]) -> list[Verdict]:
    """`cheapest_at_capacity` by searching the rate of every candidate."""
    return searched(search, candidates)


def rank_at_capacity(verdict: Keeps) -> tuple[float, ...]:
    """The cheaper request first."""
    return (verdict.cost.mean,)


def extra_at_capacity(verdict: Keeps, best: Keeps) -> float:
    """The extra cost of a request, as a share of the cheapest's."""
    return verdict.cost.mean / best.cost.mean - 1


def difference_at_capacity(verdict: Keeps, best: Keeps) -> str:
    """The extra cost of a request in percent, on the same seeds: the ratio of the costs, whose
    logarithms are compared, since a deployment of few requests/s has costs that spread widely.
    """
    if verdict.costs == best.costs:
        return "equal"
    logarithms = paired(*([log(cost) for cost in kept.costs] for kept in (verdict, best)))
    change = within_step(logarithms, max(verdict.precision, best.precision))
    if change.half_width is None:
        return paired(verdict.costs, best.costs).as_difference("a million requests")
    ends = (change.mean - change.half_width, change.mean + change.half_width)
    low, high = (f"{100 * expm1(end):,.0f}" for end in ends)
    text = f"{100 * expm1(change.mean):+,.0f}% ({low} to {high})"
    return f"{NOT_DISTINGUISHABLE}: {text}" if change.includes_zero else text


def searched(search: Search, candidates: Sequence[Candidate]) -> list[Verdict]:
    """The verdicts by a rate search with each seed."""
    seeds = search.question.seeds
    guesses = [search.arithmetic.highest_rate(candidate) for candidate in candidates]
    results = search.simulations.searches(
        [
            (candidate, seed, guess)
            for candidate, guess in zip(candidates, guesses, strict=True)
            for seed in seeds
        ]
    )
    parts = search.by_candidate(results)
    return [
        _verdict(search, candidate, part) for candidate, part in zip(candidates, parts, strict=True)
    ]


def _too_slow(search: Search, candidates: Sequence[Candidate]) -> dict[Candidate, Verdict]:
    """The candidates that are too slow at any rate, with their verdicts."""
    reasons = {candidate: search.arithmetic.too_slow(candidate) for candidate in candidates}
    return {
        candidate: Pruned(candidate.deployment, *reason)
        for candidate, reason in reasons.items()
        if reason is not None
    }


def _challenged(search: Search, wave: Sequence[Candidate], best: Keeps) -> dict[Candidate, Verdict]:
    """The candidates that are dearer than the best, with their verdicts."""
    rates = {candidate: _matching(search, candidate, best) for candidate in wave}
    verdicts, missed = dict[Candidate, Verdict](), dict[Candidate, list[Outcome]]()
    for candidate in wave:
        reason = search.arithmetic.reason(candidate, rates[candidate])
        if reason is None:
            missed[candidate] = []
        else:
            verdicts[candidate] = _pruned(candidate, reason, rates[candidate][0])
    for place in range(len(search.question.seeds)):
        _challenge(search, place, rates, missed, verdicts)
    for candidate, outcomes in missed.items():
        if len(outcomes) == len(search.question.seeds):
            verdicts[candidate] = _dearer(search, candidate, outcomes)
    return verdicts


def _challenge(
    search: Search,
    place: int,
    rates: dict[Candidate, list[tuple[int, float]]],
    missed: dict[Candidate, list[Outcome]],
    verdicts: dict[Candidate, Verdict],
) -> None:
    """Simulate one seed of the candidates that have missed with all seeds before; adds to `missed`
    those that miss again, and to `verdicts` those that cannot be simulated.
    """
    asked = [candidate for candidate, outcomes in missed.items() if len(outcomes) == place]
    results = search.simulations.outcomes([(each, *rates[each][place]) for each in asked])
    for candidate, result in zip(asked, results, strict=True):
        if isinstance(result, Failure):
            verdicts[candidate] = Pruned.by(result.error, candidate.deployment, REFUSED)
        elif result.share_inside < search.question.share:
            missed[candidate].append(result)


def _matching(search: Search, candidate: Candidate, best: Keeps) -> list[tuple[int, float]]:
    """With each seed, the rate at which the candidate costs as much for a request as the best; if
    their costs are of another origin, the rate that is lower by the errors of both.
    """
    lowered = max(0.0, 1 - error_between(candidate, best.candidate))
    factor = lowered * search.hourly(candidate) / best.hourly
    return [
        (outcome.seed, rounded_down(factor * outcome.rate))
        for outcome in best.outcomes
        if outcome.rate is not None
    ]


def rounded_down(rate: float) -> float:
    """The rate with as many digits as a search's rates have, and not above it."""
    unit = 10.0 ** (floor(log10(rate)) - DIGITS + 1)
    return float(f"{floor(rate / unit) * unit:.{DIGITS}g}")


def _verdict(
    search: Search, candidate: Candidate, results: Sequence[Searched | Failure]
) -> Verdict:
    """The verdict by the rate search of each seed."""
    failed = refused(candidate, results)
    if failed is not None:
        return failed
    searches = [result for result in results if isinstance(result, Searched)]
    question, hourly = search.question, search.hourly(candidate)
    missed = tuple(result.missed for result in searches if result.missed is not None)
    highest = tuple(result.highest for result in searches if result.highest is not None)
    limit = _limit(search, candidate, missed or highest)
    if len(highest) < len(searches):
        return Misses(
            candidate=candidate,
            hourly=hourly,
            outcomes=missed,
            limit=limit,
            what=broken(missed, question),
        )
    rates = tuple(outcome.rate for outcome in highest if outcome.rate is not None)
    others = tuple(outcome for result in searches for outcome in result.kept)
    return Keeps(candidate, hourly, highest, rates, limit, others, question.precision)


def _limit(search: Search, candidate: Candidate, outcomes: Sequence[Outcome]) -> str:
    first = outcomes[0]
    bounds = search.arithmetic.bounds(candidate, first.seed, first.rate)
    return limit_of(first, bounds.loads, search.question)


def _pruned(candidate: Candidate, reason: Reason, at: tuple[int, float]) -> Pruned:
    text = f"at {at[1]:g} req/s, where another one costs as much: {reason.text}"
    return Pruned(candidate.deployment, reason.limit, text)


def _dearer(search: Search, candidate: Candidate, outcomes: Sequence[Outcome]) -> Dearer:
    limit = _limit(search, candidate, outcomes)
    return Dearer(candidate, search.hourly(candidate), tuple(outcomes), limit)
