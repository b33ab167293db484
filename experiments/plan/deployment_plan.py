"""A plan: the words' space, pruned and searched; and its ranking."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.core.errors import InputError
from testbed.experiments.cli.served_command import NO_COMMAND, ServedCommand
from testbed.experiments.plan import at_capacity, at_load
from testbed.experiments.plan.arithmetic import Arithmetic
from testbed.experiments.plan.bottlenecks import strains
from testbed.experiments.plan.cost_errors import error_between, hide
from testbed.experiments.plan.plan_search import Search
from testbed.experiments.plan.prices import Rate
from testbed.experiments.plan.pruning import check_not_empty, examined
from testbed.experiments.plan.question import Question
from testbed.experiments.plan.simulations import Simulations
from testbed.experiments.plan.space import Candidate, deployments
from testbed.experiments.plan.verdicts import (
    REFUSED,
    Dearer,
    Keeps,
    Misses,
    Pruned,
    Verdict,
    check_one_reason,
)
from testbed.experiments.runs.progress import status_line
from testbed.experiments.runs.quantities import emptier_server, short_runs
from testbed.experiments.runs.words import WITH_MARKS, chosen, is_of_hydra

RATE = "arrivals.rate"
SEED = "seed"
OF_THE_LOAD = ("slo.", "trace", "arrivals", "workload.")


@dataclass(frozen=True)
class Mode:
    """The parts of a plan: its search, the search over everything, its order, and its comparison of
    a deployment with the cheapest, as a share of the cost and in words. short: the remark on runs
    that are too short.
    """

    search: Callable[[Search, Sequence[Candidate]], list[Verdict]]
    enumerate: Callable[[Search, Sequence[Candidate]], list[Verdict]]
    rank: Callable[[Keeps], tuple[float, ...]]
    extra: Callable[[Keeps, Keeps], float]
    difference: Callable[[Keeps, Keeps], str]
    served: str
    short: Callable[[str, float], list[str]]


AT_LOAD = Mode(
    search=at_load.cheapest_at_load,
    enumerate=at_load.all_at_load,
    rank=at_load.rank_at_load,
    extra=at_load.extra_at_load,
    difference=at_load.difference_at_load,
    served="the given requests",
    short=emptier_server,
)
AT_CAPACITY = Mode(
    search=at_capacity.cheapest_at_capacity,
    enumerate=at_capacity.all_at_capacity,
    rank=at_capacity.rank_at_capacity,
    extra=at_capacity.extra_at_capacity,
    difference=at_capacity.difference_at_capacity,
    served="each deployment's highest rate",
    short=short_runs,
)


@dataclass(frozen=True)
class Plan:
    """verdicts: of every deployment of the space. num_simulations: different runs, those of rate
    searches included.
    """

    question: Question
    mode: Mode
    prices: Rate
    verdicts: Sequence[Verdict]
    num_simulations: int

    @property
    def ranked(self) -> list[Keeps]:
        """The candidates that keep the SLO, the cheapest first."""
        kept = [verdict for verdict in self.verdicts if isinstance(verdict, Keeps)]
        return sorted(kept, key=self.mode.rank)

    @property
    def incomparable(self) -> list[Keeps]:
        """Those that keep it and may be cheaper than the cheapest: their costs are of another
        origin, and the errors of both are larger than the difference.
        """
        return [verdict for verdict in self.ranked[1:] if self._is_within_errors(verdict)]

    def _is_within_errors(self, verdict: Keeps) -> bool:
        best = self.ranked[0]
        error = error_between(verdict.candidate, best.candidate)
        return hide(error, self.mode.extra(verdict, best))

    @property
    def misses(self) -> list[Misses]:
        """The simulated ones that miss it, the nearest first."""
        missed = [verdict for verdict in self.verdicts if isinstance(verdict, Misses)]
        return sorted(missed, key=self._distance)

    def _distance(self, verdict: Misses) -> tuple[float, float]:
        """The distance from the SLO: by the share inside, then by the worst objective."""
        ratios = [ratio for _, ratio in strains(verdict.outcomes[0], self.question)]
        return -verdict.inside.mean, max(ratios)

    @property
    def dearer(self) -> list[Dearer]:
        """Deployments that were simulated only until it was certain that they are dearer."""
        return [verdict for verdict in self.verdicts if isinstance(verdict, Dearer)]

    @property
    def pruned(self) -> list[Pruned]:
        """Deployments that were not simulated."""
        return [verdict for verdict in self.verdicts if isinstance(verdict, Pruned)]


@dataclass(frozen=True)
class Request:
    """The inputs of a plan. num_gpus: of every deployment; None: any. everything: simulate all
    that fits. command: of a server, to which the words are overrides.
    """

    words: tuple[str, ...]
    share: float
    seeds: tuple[int, ...]
    precision: float
    num_gpus: int | None
    prices: Rate
    runs: Path
    everything: bool = False
    command: ServedCommand = NO_COMMAND


def planned(request: Request, report: Callable[[str], None]) -> Plan:
    """The plan; raises InputError for words that make no sense, and for a space that is empty after
    the checks.
    """
    _check(request)
    launcher = tuple(word for word in request.words if is_of_hydra(word))
    words = [word for word in request.words if word not in launcher]
    space = deployments(words, request.command)
    report(f"{len(space)} deployments, with {len(request.seeds)} seeds; a line each ten seconds")
    candidates, pruned = examined(space, request.num_gpus)
    check_not_empty(candidates, pruned)
    for candidate in candidates:
        request.prices.hourly(candidate)  # raises InputError for a GPU without a price
    question = _question(request, candidates)
    mode = _mode(request.words, candidates)
    simulations = Simulations(question, request.runs, launcher)

    def counted(text: str) -> None:
        report(f"{text}; {simulations.count} simulations so far")

    search = Search(
        question=question,
        arithmetic=Arithmetic(question),
        simulations=simulations,
        prices=request.prices,
        report=counted,
    )
    find = mode.enumerate if request.everything else mode.search
    with status_line(lambda: f"plan: {simulations.count} simulations so far"):
        verdicts = [*find(search, candidates), *pruned]
    _check_simulated(verdicts)
    return Plan(question, mode, request.prices, verdicts, simulations.count)


def _check(request: Request) -> None:
    """Raise InputError for numbers that make no sense, and for words that a plan does not take."""
    if not 0 < request.share <= 1:
        raise InputError(
            key="--share", value=request.share, problem="must be above 0 and at most 1"
        )
    values = chosen(request.words)
    for key in (RATE, SEED):
        if "," in values.get(key, ""):
            raise InputError(
                key=key,
                value=values[key],
                problem="is no choice of a deployment",
                remedy="--seeds N gives seeds; a plan is for one rate",
            )
    for key, value in values.items():
        if key.startswith(OF_THE_LOAD) and "," in value and key not in WITH_MARKS:
            raise InputError(
                key=key,
                value=value,
                problem="is no choice of a deployment",
                remedy="give one value",
            )


def _question(request: Request, candidates: Sequence[Candidate]) -> Question:
    slo = candidates[0].config.slo
    if not slo:
        raise InputError(
            key="slo",
            problem="no objective is given",
            remedy="add slo.ttft_s=... or slo.tpot_s=...",
        )
    for candidate in candidates:
        for name in ("stop_at_latency", "window_s"):
            if getattr(candidate.config, name) is not None:
                raise InputError(
                    key=name,
                    problem=(
                        "a run that stops before its end leaves out the slowest requests, which a "
                        "plan counts"
                    ),
                    remedy="set it to null",
                )
    return Question(slo, request.share, request.seeds, request.precision)


def _mode(words: Sequence[str], candidates: Sequence[Candidate]) -> Mode:
    """At the load of the words; without a rate if arrivals have one, at capacity."""
    has_rate = "rate" in candidates[0].config.arrivals.parameters
    return AT_CAPACITY if has_rate and RATE not in chosen(words) else AT_LOAD


def _check_simulated(verdicts: Sequence[Verdict]) -> None:
    """Raise InputError if every simulation failed for one reason, an error of the words."""
    if any(isinstance(verdict, Keeps | Misses | Dearer) for verdict in verdicts):
        return
    pruned = [verdict for verdict in verdicts if isinstance(verdict, Pruned)]
    check_one_reason([ruled_out for ruled_out in pruned if ruled_out.limit == REFUSED])
