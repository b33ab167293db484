"""The cheapest candidates that keep the SLO with given requests.

An hour's cost is known without a simulation, so candidates are examined from the cheapest on, and
the search ends with those that cost as much as the first one that keeps the SLO. A candidate keeps
it if the mean share over the seeds does. Exact: a candidate is left out only if arithmetic says
that every seed misses, or if the seeds that are left could not lift the mean far enough.
"""

from collections.abc import Sequence
from itertools import groupby
from math import inf

from testbed.experiments.plan.bottlenecks import broken, limit_of
from testbed.experiments.plan.jobs import Failure, Outcome
from testbed.experiments.plan.plan_search import Search
from testbed.experiments.plan.space import Candidate
from testbed.experiments.plan.verdicts import Keeps, Misses, Pruned, Verdict, rate_of, refused
from testbed.study.replications import paired

DEARER = "dearer"
ROUNDING = 1e-12


def cheapest_at_load(search: Search, candidates: Sequence[Candidate]) -> list[Verdict]:
    """A verdict for each candidate."""
    verdicts = list[Verdict]()
    first: Keeps | None = None
    by_cost = sorted(candidates, key=search.hourly)
    for hourly, group in groupby(by_cost, key=search.hourly):
        if first is not None:
            verdicts += [_dearer(candidate, first, hourly, search) for candidate in group]
            continue
        verdicts += _examined(search, list(group))
        first = next((verdict for verdict in verdicts if isinstance(verdict, Keeps)), None)
    return verdicts


def all_at_load(search: Search, candidates: Sequence[Candidate]) -> list[Verdict]:
    """`cheapest_at_load` by simulating every candidate with every seed, without arithmetic."""
    seeds = search.question.seeds
    results = search.simulations.outcomes(
        [(candidate, seed, None) for candidate in candidates for seed in seeds]
    )
    parts = search.by_candidate(results)
    return [
        verdict_of(search, candidate, part)
        for candidate, part in zip(candidates, parts, strict=True)
    ]


def rank_at_load(verdict: Keeps) -> tuple[float, ...]:
    """The cheaper hour first; of equal ones that in which more requests keep the SLO, then the
    cheaper request: requests that wait for answers come more often if these come earlier.
    """
    return verdict.hourly, -verdict.inside.mean, verdict.cost.mean


def extra_at_load(verdict: Keeps, best: Keeps) -> float:
    """The extra cost of an hour, as a share of the cheapest's: prices, which no costs change."""
    return inf if verdict.hourly > best.hourly else 0.0


def difference_at_load(verdict: Keeps, best: Keeps) -> str:
    """The extra cost of an hour; of equal ones, the difference in percent of requests inside, and
    if these are equal too, how much dearer a million requests are.
    """
    if verdict.hourly > best.hourly:
        return f"+{verdict.hourly - best.hourly:g} an hour"
    shares = [[100 * outcome.share_inside for outcome in kept.outcomes] for kept in (verdict, best)]
    if shares[0] != shares[1]:
        return paired(*shares).as_difference("% inside")
    if verdict.costs == best.costs:
        return "equal"
    return paired(verdict.costs, best.costs).as_difference("a million requests")


def verdict_of(
    search: Search, candidate: Candidate, results: Sequence[Outcome | Failure]
) -> Verdict:
    """The verdict by the runs of some seeds, the first ones."""
    failed = refused(candidate, results)
    if failed is not None:
        return failed
    outcomes = tuple(result for result in results if isinstance(result, Outcome))
    question, hourly = search.question, search.hourly(candidate)
    last = outcomes[-1]
    bounds = search.arithmetic.bounds(candidate, last.seed, rate=None)
    limit = limit_of(last, bounds.loads, question)
    if len(outcomes) < len(question.seeds) or not _keeps(search, outcomes):
        return Misses(candidate, hourly, outcomes, limit, broken(outcomes, question))
    rates = tuple(rate_of(candidate, outcome) for outcome in outcomes)
    return Keeps(candidate, hourly, outcomes, rates, limit)


def _examined(search: Search, group: Sequence[Candidate]) -> list[Verdict]:
    """The verdicts of candidates of one cost, in their order; each seed is a round of runs."""
    seeds = search.question.seeds
    verdicts = dict[Candidate, Verdict]()
    for candidate in group:
        reason = search.arithmetic.reason(candidate, [(seed, None) for seed in seeds])
        if reason is not None:
            verdicts[candidate] = Pruned(candidate.deployment, *reason)
    results = {
        candidate: list[Outcome | Failure]() for candidate in group if candidate not in verdicts
    }
    for seed in seeds:
        undecided = [candidate for candidate, so_far in results.items() if _is_open(search, so_far)]
        runs = search.simulations.outcomes([(candidate, seed, None) for candidate in undecided])
        for candidate, result in zip(undecided, runs, strict=True):
            results[candidate].append(result)
        search.report(f"seed {seed}: {len(undecided)} of {len(group)} deployments of equal cost")
    verdicts |= {
        candidate: verdict_of(search, candidate, so_far) for candidate, so_far in results.items()
    }
    return [verdicts[candidate] for candidate in group]


def _is_open(search: Search, results: Sequence[Outcome | Failure]) -> bool:
    """True if the seeds that are left can still make the candidate keep the SLO."""
    outcomes = [result for result in results if isinstance(result, Outcome)]
    return len(outcomes) == len(results) and _keeps(search, outcomes)


def _keeps(search: Search, outcomes: Sequence[Outcome]) -> bool:
    """True if the mean share is large enough, if all requests of further seeds keep the SLO."""
    question = search.question
    further = len(question.seeds) - len(outcomes)
    total = sum(outcome.share_inside for outcome in outcomes) + further
    return total >= question.share * len(question.seeds) - ROUNDING


def _dearer(candidate: Candidate, first: Keeps, hourly: float, search: Search) -> Pruned:
    unit = search.prices.unit
    text = f"{hourly:g} {unit} an hour, where another one keeps the SLO for {first.hourly:g}"
    return Pruned(candidate.deployment, DEARER, text)
