"""The answers of `--json`: the fields of each dataclass are the keys of a JSON object, described in
JSON.md. A field may be added; none is renamed or removed without a line in CHANGELOG.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testbed.checks.contract.clauses import ClauseBroken
    from testbed.core.errors import AnswerIsNo
    from testbed.experiments.look.compare.run_comparison import Comparison
    from testbed.experiments.look.hits.hit_curves import HitCurves
    from testbed.experiments.mend.trials import Mending, Tried
    from testbed.experiments.real.validation.deviations import Compared
    from testbed.experiments.runs.points import Point
    from testbed.study.capacity_search import Capacities, Capacity
    from testbed.study.sensitivity import CapacityIntervals


@dataclass(frozen=True)
class Choice:
    """An option of a config group."""

    kind: str
    name: str
    option: str
    source: str
    target: str
    about: str


@dataclass(frozen=True)
class Choices:
    """The answer of `testbed list --json`."""

    choices: list[Choice]


@dataclass(frozen=True)
class NoAnswer:
    """What every command with --json prints where the answer is no."""

    kind: str
    message: str
    problem: str
    key: str
    value: str | None
    remedy: str


@dataclass(frozen=True)
class RunAnswer:
    """The answer of `testbed run --json`."""

    folder: str
    is_new: bool
    notes: list[str]
    summary: dict[str, object]
    intervals: "list[SensitiveFigure]"


@dataclass(frozen=True)
class SensitiveFigure:
    """The smallest and the largest value of a run's figure."""

    figure: str
    lowest: float
    highest: float


@dataclass(frozen=True)
class SweptPoint:
    """A point of a sweep, or with seeds one run of it."""

    values: dict[str, str]
    folder: str
    summary: dict[str, object]


@dataclass(frozen=True)
class SweptMean:
    """A number of a setting, over its seeds."""

    values: dict[str, str]
    quantity: str
    mean: float
    half_width: float | None
    num_seeds: int


@dataclass(frozen=True)
class SweepAnswer:
    """The answer of `testbed run -m --json`."""

    table: str
    figure: str | None
    notes: list[str]
    points: list[SweptPoint]
    means: list[SweptMean]


@dataclass(frozen=True)
class CheckAnswer:
    """The answer of `testbed check --json`."""

    plug_in: str
    keeps_contract: bool
    clause: int | None
    problem: str
    place: str
    calls: list[str]


@dataclass(frozen=True)
class TriedRate:
    """A rate that `testbed capacity` has simulated."""

    rate: float
    share_inside: float
    goodput: float


@dataclass(frozen=True)
class SeedCapacity:
    """The capacity with one seed."""

    seed: int
    rate: float
    share_inside: float
    goodput: float
    tried: list[TriedRate]
    overload: str


@dataclass(frozen=True)
class SensitiveCapacity:
    """The smallest and the largest `rate`, or `share_inside` at the rate found, with costs and
    arrivals varied.
    """

    seed: int
    metric: str
    lowest: float
    highest: float


@dataclass(frozen=True)
class CapacityAnswer:
    """The answer of `testbed capacity --json`."""

    rate: float
    half_width: float | None
    share: float
    costs: str
    future_read: str
    seeds: list[SeedCapacity]
    intervals: list[SensitiveCapacity]


@dataclass(frozen=True)
class MendNumber:
    """A number of a server with a change, over the seeds."""

    quantity: str
    mean: float | None
    half_width: float | None
    difference: float | None
    difference_half_width: float | None


@dataclass(frozen=True)
class MendChange:
    """A change of a server, or the server as it is."""

    change: str
    words: list[str]
    note: str
    verdict: str
    numbers: list[MendNumber]
    num_overloaded: int
    num_rejected: int


@dataclass(frozen=True)
class MendAnswer:
    """The answer of `testbed mend --json`."""

    preempts: bool
    costs: str
    seeds: list[int]
    server: MendChange
    changes: list[MendChange]
    failed: dict[str, str]


@dataclass(frozen=True)
class HitRate:
    """What an eviction order finds at one cache size."""

    order: str
    num_blocks: int
    gib: float
    blocks_found: int
    share: float


@dataclass(frozen=True)
class HitsAnswer:
    """The answer of `testbed hits --json`."""

    num_prompts: int
    prompt_tokens: int
    block_size: int
    block_bytes: int
    stored_blocks: int
    pools: dict[str, int]
    rates: list[HitRate]


@dataclass(frozen=True)
class ComparedRun:
    """A run of `testbed compare`."""

    name: str
    folder: str
    on_gpu: bool


@dataclass(frozen=True)
class Difference:
    """A config key whose values differ between runs."""

    key: str
    values: dict[str, str]


@dataclass(frozen=True)
class ComparedNumber:
    """A number of one run."""

    group: str
    quantity: str
    unit: str
    run: str
    value: float | None
    change: float | None
    change_unit: str | None
    reference: str | None


@dataclass(frozen=True)
class ComparisonAnswer:
    """The answer of `testbed compare --json`."""

    runs: list[ComparedRun]
    differences: list[Difference]
    numbers: list[ComparedNumber]
    remarks: list[str]


@dataclass(frozen=True)
class MetricError:
    """A metric of a log and of its simulation."""

    log: str
    metric: str
    real: float
    simulated: float
    error_percent: float | None


@dataclass(frozen=True)
class Effect:
    """A metric of the simulated server with and without a change."""

    log: str
    change: str
    metric: str
    unchanged: float
    changed: float
    effect_percent: float | None


@dataclass(frozen=True)
class Sensitive:
    """The smallest and the largest simulated value of a metric, with costs and arrivals varied."""

    log: str
    metric: str
    lowest: float
    highest: float


@dataclass(frozen=True)
class ValidationAnswer:
    """The answer of `testbed validate --json`."""

    errors: list[MetricError]
    effects: list[Effect]
    notes: list[str]
    within_percent: float | None
    is_within: bool | None
    intervals: list[Sensitive]


def no_answer(error: "AnswerIsNo") -> NoAnswer:
    """The refusal by its parts; `kind` is its class in words."""
    kinds = {"DoesNotFit": "does not fit", "DoesNotStart": "does not start"}
    kind = kinds.get(type(error).__name__, "is not met")
    parts = (error.problem, error.key, error.value, error.remedy)
    return NoAnswer(kind, " ".join(str(error).split()), *parts)


def sweep_answer(
    points: "Sequence[Point]", table: Path, figure: Path | None, notes: list[str]
) -> SweepAnswer:
    """The points in order, and the means of their settings over the seeds."""
    from testbed.experiments.runs.points import settings
    from testbed.experiments.runs.replicated import setting_means

    swept = [SweptPoint(dict(of.chosen), of.folder, dict(of.summary)) for of in points]
    means = [
        SweptMean(dict(row.chosen), row.title, *row.interval)
        for row in setting_means(settings(points))
    ]
    return SweepAnswer(str(table), None if figure is None else str(figure), notes, swept, means)


def check_answer(plug_in: str, broken: "ClauseBroken | None", place: str) -> CheckAnswer:
    """Whether a plug-in keeps its contract; place: FILE:LINE of the plug-in's fault, if known."""
    if broken is None:
        return CheckAnswer(plug_in, True, None, "", "", [])
    return CheckAnswer(plug_in, False, broken.clause, str(broken), place, list(broken.calls))


def capacity_answer(
    capacities: "Capacities", sensitivity: Mapping[int, "CapacityIntervals"]
) -> CapacityAnswer:
    """The capacity over the seeds, that of each seed with the rates that were tried, and how
    sensitive it is.
    """
    first = next(iter(capacities.of_seed.values()))
    seeds = [_seed_capacity(seed, highest) for seed, highest in capacities.of_seed.items()]
    intervals = [
        SensitiveCapacity(seed, name, *getattr(of_seed, name))
        for seed, of_seed in sensitivity.items()
        for name in ("rate", "share_inside")
    ]
    rate, about = capacities.rate, (first.share, first.costs, first.future_read)
    return CapacityAnswer(rate.mean, rate.half_width, *about, seeds, intervals)


def _seed_capacity(seed: int, highest: "Capacity") -> SeedCapacity:
    tried = [TriedRate(*point) for point in highest.points]
    best = next(point for point in tried if point.rate == highest.rate)
    found = (highest.rate, best.share_inside, best.goodput)
    return SeedCapacity(seed, *found, tried, highest.overload)


def mend_answer(mending: "Mending") -> MendAnswer:
    """The server, its changes in order, and those without a verdict."""
    from testbed.run.summaries import costs_of

    return MendAnswer(
        mending.preempts,
        costs_of(mending.server.summaries[0]),
        list(mending.seeds),
        _mend_change(mending.server, mending.server),
        [_mend_change(tried, mending.server) for tried in mending.tried],
        {change.name: reason for change, reason in mending.failed.items()},
    )


def _mend_change(tried: "Tried", server: "Tried") -> MendChange:
    from testbed.experiments.mend.trials import NUMBERS

    change, numbers = tried.change, list[MendNumber]()
    for name in NUMBERS:
        mean, less = tried.mean(name), tried.less(name, server)
        pairs = ((None, None) if of is None else (of.mean, of.half_width) for of in (mean, less))
        (value, half), (difference, half_of_it) = pairs
        numbers.append(MendNumber(name, value, half, difference, half_of_it))
    verdict = "" if tried is server else tried.verdict(server)
    counts = (tried.num_overloaded, tried.num_rejected)
    return MendChange(change.name, list(change.words), change.note, verdict, numbers, *counts)


def hits_answer(curves: "HitCurves") -> HitsAnswer:
    """The curves, a row for each order and size."""
    rates = [
        HitRate(order=order, num_blocks=size, gib=curves.gib(size), blocks_found=found, share=share)
        for order, hits in curves.hits.items()
        for size, found, share in zip(curves.sizes, hits, curves.share(order), strict=True)
    ]
    return HitsAnswer(
        curves.num_prompts,
        curves.prompt_tokens,
        curves.block_size,
        curves.block_bytes,
        curves.stored_blocks,
        dict(curves.pools),
        rates,
    )


def comparison_answer(comparison: "Comparison") -> ComparisonAnswer:
    """The runs, their differences and their numbers."""
    from testbed.experiments.look.compare.run_comparison import number_rows

    runs = [ComparedRun(run.name, str(run.folder), run.on_gpu) for run in comparison.runs]
    differences = [
        Difference(str(key), {str(run): str(value) for run, value in values.items()})
        for key, values in comparison.differences.iterrows()
    ]
    numbers = [ComparedNumber(*row) for row in number_rows(comparison)]
    return ComparisonAnswer(runs, differences, numbers, list(comparison.remarks))


def metric_error(row: "Compared") -> MetricError:
    """A row of a validation."""
    return MetricError(row.log, row.metric, row.real, row.simulated, row.error_percent)
