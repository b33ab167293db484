"""The answers of `--json`: the fields of each dataclass are the keys of a JSON object, and a table
of the site. A field may be added; none is renamed or removed without a line in CHANGELOG.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.experiments.look.compare.compared_number import ComparedNumber
from testbed.experiments.real.validation.metric_error import MetricError
from testbed.experiments.runs.points import Point

if TYPE_CHECKING:
    from testbed.checks.contract.clauses import ClauseBroken
    from testbed.core.errors import AnswerIsNo
    from testbed.experiments.look.compare.run_comparison import Comparison
    from testbed.experiments.look.hits.hit_curves import HitCurves
    from testbed.experiments.mend.trials import Mending
    from testbed.experiments.mend.tried import Tried
    from testbed.study.capacity_search import Capacities, Capacity
    from testbed.study.sensitivity import CapacityIntervals


@dataclass(frozen=True)
class Choice:
    """An option of a config group.

    Attributes:
        kind: the config group, such as `policy`
        name: the option's name
        option: the override that selects it, such as `policy=paged`
        source: `built in`, `user folder`, or `package NAME`
        target: the class that is built; empty if the option is only values
        about: a line about it
    """

    kind: str
    name: str
    option: str
    source: str
    target: str
    about: str


@dataclass(frozen=True)
class Choices:
    """The answer of `testbed list --json`.

    Attributes:
        choices: every option, in the order of the groups
    """

    choices: list[Choice]


@dataclass(frozen=True)
class NoAnswer:
    """The answer of every command with --json if it is no.

    Attributes:
        kind: `does not start`, `does not fit`, or `is not met`
        message: the whole line
        problem: what is wrong
        key: the option or key that it is about; empty if it is about none alone
        value: its value
        remedy: a way out; empty without one
    """

    kind: str
    message: str
    problem: str
    key: str
    value: str | None
    remedy: str


@dataclass(frozen=True)
class RunAnswer:
    """The answer of `testbed run --json`.

    Attributes:
        folder: the run folder
        is_new: false: the folder was complete, and nothing was run
        notes: on the command of `--from-vllm` or `--from-sglang`: its overrides, the lines that the
            server would log, ignored options
        summary: the folder's `summary.json`
        intervals: with `--sensitivity` a row for each figure
    """

    folder: str
    is_new: bool
    notes: list[str]
    summary: dict[str, object]
    intervals: "list[SensitiveFigure]"


@dataclass(frozen=True)
class SensitiveFigure:
    """The smallest and the largest value of a run's figure.

    Attributes:
        figure: such as `ttft_mean_s`, in s, or `preemptions`
        lowest: the smallest simulated value
        highest: the largest simulated value
    """

    figure: str
    lowest: float
    highest: float


@dataclass(frozen=True)
class SweptMean:
    """A number of a setting, over its seeds.

    Attributes:
        values: the value of each axis but the seed
        quantity: the number with its unit, such as `TTFT p99, s`
        mean: the mean over the seeds
        half_width: half of its 95% interval; null for one seed
        num_seeds: the number of seeds
    """

    values: dict[str, str]
    quantity: str
    mean: float
    half_width: float | None
    num_seeds: int


@dataclass(frozen=True)
class SweepAnswer:
    """The answer of `testbed run -m --json`.

    Attributes:
        table: the CSV with every number of every point
        figure: its figure; null if no axis is a number with three values
        notes: as of one run, those of all points
        points: in the order of the command line
        means: the main numbers of each setting; a setting is the points that differ in their seed
            alone
    """

    table: str
    figure: str | None
    notes: list[str]
    points: list[Point]
    means: list[SweptMean]


@dataclass(frozen=True)
class CheckAnswer:
    """The answer of `testbed check --json`.

    Attributes:
        plug_in: MODULE:CLASS
        keeps_contract: whether it keeps every clause; if not, the exit code is 1
        clause: the number of the broken clause
        problem: what is broken; empty if nothing is
        place: FILE:LINE of the plug-in that raised an error; empty without one
        calls: the shortest calls that break the clause
    """

    plug_in: str
    keeps_contract: bool
    clause: int | None
    problem: str
    place: str
    calls: list[str]


@dataclass(frozen=True)
class TriedRate:
    """A rate that `testbed capacity` has simulated.

    Attributes:
        rate: requests/s
        share_inside: share of the requests that meet the SLO
        goodput: requests/s that meet it, of the whole run, its drain included
    """

    rate: float
    share_inside: float
    goodput: float


@dataclass(frozen=True)
class SeedCapacity:
    """The capacity with one seed.

    Attributes:
        seed: the seed
        rate: the highest rate that meets the SLO, requests/s
        share_inside: the share that meets it at that rate
        goodput: requests/s that meet it at that rate, of the whole run, its drain included
        completed: requests/s that complete at that rate in the second half of the arrivals; null of
            a run whose requests arrive at once
        arrived: requests/s that arrive in that half; null likewise
        tried: every simulated rate, ascending
        overload: that the server did not keep up with the arrivals at that rate; empty if it did
    """

    seed: int
    rate: float
    share_inside: float
    goodput: float
    completed: float | None
    arrived: float | None
    tried: list[TriedRate]
    overload: str


@dataclass(frozen=True)
class SensitiveCapacity:
    """The smallest and the largest `rate`, or `share_inside` at the rate found, with costs and
    arrivals varied.

    Attributes:
        seed: the seed
        metric: `rate`, requests/s, over costs; `share_inside` at the rate found, over costs and
            arrivals
        lowest: the smallest value
        highest: the largest value
    """

    seed: int
    metric: str
    lowest: float
    highest: float


@dataclass(frozen=True)
class CapacityAnswer:
    """The answer of `testbed capacity --json`.

    Attributes:
        rate: the highest rate that meets the SLO, requests/s, mean of the seeds
        half_width: half of its 95% interval, with the step; null for one seed
        step: to which the search knows the rate of a seed, requests/s
        filling: the largest share of the arrivals in which the server, empty at first, filled; by
            about this share a longer run finds less, no bound
        share: the share of requests that must meet the SLO
        too_long: the share of requests that are longer than the server takes, which it rejects at
            any rate: they are outside the SLO; the largest of the seeds
        costs: the source of the costs and their tested error; empty on a GPU
        future_read: what the runs read of the future, as no real server can; empty if they read
            nothing
        origin: the measurements that the costs rest on, and the way from them
        about: the model, its GPUs and the workload
        first_tokens: what TTFT is with prefill apart, and how long hand-overs take; empty without
        seeds: the capacity with each seed
        intervals: with `--sensitivity` two rows, of the first seed
    """

    rate: float
    half_width: float | None
    step: float
    filling: float
    share: float
    too_long: float
    costs: str
    future_read: str
    origin: str
    about: str
    first_tokens: str
    seeds: list[SeedCapacity]
    intervals: list[SensitiveCapacity]


@dataclass(frozen=True)
class ServerCapacity:
    """The capacity of one of several servers.

    Attributes:
        command: the words of its command that not all of them have
        capacity: what its search found
        difference: from the rate of the first server on the same seeds, requests/s
        difference_half_width: half of its 95% interval, with the larger step of both searches; null
            for one seed
        cost_error: relative error of the ratio of both rates if their costs are of another origin
            than the first server's, else 0
        is_comparable: false if that error is larger than the difference
    """

    command: str
    capacity: CapacityAnswer
    difference: float
    difference_half_width: float | None
    cost_error: float
    is_comparable: bool


@dataclass(frozen=True)
class ComparedCapacities:
    """The answer of `testbed capacity --json` with several servers' commands.

    Attributes:
        servers: in the order of the command line
        notes: on the costs: what makes them of one source, and what still sets them apart
    """

    servers: list[ServerCapacity]
    notes: list[str]


@dataclass(frozen=True)
class MendNumber:
    """A number of a server with a change, over the seeds.

    Attributes:
        quantity: the number with its unit
        mean: the mean; null if a seed has none
        half_width: half of its 95% interval
        difference: from the server as it is, seed by seed; null if it is not compared
        difference_half_width: half of the difference's 95% interval; of a goal that was tested,
            corrected for the number of changes as its p-value is
    """

    quantity: str
    mean: float | None
    half_width: float | None
    difference: float | None
    difference_half_width: float | None


@dataclass(frozen=True)
class MendChange:
    """A change of a server, or the server as it is.

    Attributes:
        change: as an engineer writes it
        words: the overrides that make it
        note: what to know of it; empty for nothing
        verdict: `better`, `better by less than 2%`, `not distinguishable`, `changes nothing`,
            `worse by less than 2%`, `other costs: not compared` or `worse`, by the goal; of changes
            that ran with few seeds `no gain on the first seeds` or `worse on the first seeds`;
            empty for the server as it is
        p_value: of the goal's difference, adjusted for the number of changes (Holm); null if the
            change was not tested
        losses: the quantities that it makes worse by 2% or more, the goal by the verdict, others by
            the 95% interval of each
        numbers: over the seeds
        num_seeds: seeds that it ran with, from the first on
        num_overloaded: seeds on which the server did not keep up with the arrivals
        num_rejected: requests that were rejected, over all seeds
    """

    change: str
    words: list[str]
    note: str
    verdict: str
    p_value: float | None
    losses: list[str]
    numbers: list[MendNumber]
    num_seeds: int
    num_overloaded: int
    num_rejected: int


@dataclass(frozen=True)
class MendAnswer:
    """The answer of `testbed mend --json`.

    Attributes:
        goal: the quantity by which changes are judged
        preempts: whether the server as it is preempts on any seed
        costs: the source of the costs and their tested error
        seeds: of the server as it is, and of each change that may be the best by the first ones
        server: the server as it is
        changes: the best first
        best: the change to make; null: none of the options tried ends the preemptions and makes
            nothing worse, or betters the goal
        rivals: changes with a better mean of the goal than the best, from which they are not told
            apart
        failed: changes whose runs failed, each with the reason; they have no verdict
        notes: on servers that do not settle while requests arrive, and what the verdicts hold for
    """

    goal: str
    preempts: bool
    costs: str
    seeds: list[int]
    server: MendChange
    changes: list[MendChange]
    best: str | None
    rivals: list[str]
    failed: dict[str, str]
    notes: list[str]


@dataclass(frozen=True)
class HitRate:
    """Hits of an eviction order at one cache size.

    Attributes:
        order: the eviction order; `belady` is the bound of all
        num_blocks: the cache's size
        gib: the same in GiB
        blocks_found: blocks that all prompts together find
        share: their tokens, as a share of the tokens of all prompts
    """

    order: str
    num_blocks: int
    gib: float
    blocks_found: int
    share: float


@dataclass(frozen=True)
class HitsAnswer:
    """The answer of `testbed hits --json`.

    Attributes:
        num_prompts: prompts of the trace
        prompt_tokens: tokens of all prompts
        block_size: tokens of a block
        block_bytes: bytes of a block, over all GPUs together
        stored_blocks: different full blocks of all prompts
        pools: blocks of the server's pool by name, each with the pools above it
        rates: a row for each order and size
    """

    num_prompts: int
    prompt_tokens: int
    block_size: int
    block_bytes: int
    stored_blocks: int
    pools: dict[str, int]
    rates: list[HitRate]


@dataclass(frozen=True)
class ComparedRun:
    """A run of `testbed compare`.

    Attributes:
        name: its name in this comparison
        folder: its run folder
        on_gpu: whether it ran on a GPU; else it was simulated
    """

    name: str
    folder: str
    on_gpu: bool


@dataclass(frozen=True)
class Difference:
    """A config key whose values differ between runs.

    Attributes:
        key: the dotted key of the config
        values: the value of each run by its name; `-` if it has no such key
    """

    key: str
    values: dict[str, str]


@dataclass(frozen=True)
class ComparisonAnswer:
    """The answer of `testbed compare --json`.

    Attributes:
        runs: in the order of the command line
        differences: config keys whose values differ
        numbers: a row per number and run
        remarks: read them before the numbers
    """

    runs: list[ComparedRun]
    differences: list[Difference]
    numbers: list[ComparedNumber]
    remarks: list[str]


@dataclass(frozen=True)
class Effect:
    """A metric of the simulated server with and without a change.

    Attributes:
        log: the log's path
        change: the words of `--what-if`
        metric: such as `ttft_s_mean`
        unchanged: simulated without the change
        changed: simulated with it
        effect_percent: of the change, in percent
    """

    log: str
    change: str
    metric: str
    unchanged: float
    changed: float
    effect_percent: float | None


@dataclass(frozen=True)
class Sensitive:
    """The smallest and the largest simulated value of a metric, with costs and arrivals varied.

    Attributes:
        log: the log's path
        metric: such as `ttft_s_mean`
        lowest: the smallest simulated value
        highest: the largest simulated value
    """

    log: str
    metric: str
    lowest: float
    highest: float


@dataclass(frozen=True)
class ValidationAnswer:
    """The answer of `testbed validate --json`.

    Attributes:
        errors: a row per log and metric
        effects: a row per `--what-if`, log and metric
        notes: remarks on the logs, their servers and the errors
        within_percent: the limit of `--within`
        is_within: whether every error is within it; if not, the exit code is 1
        intervals: a row per log and metric, over costs that say how far they were off; with
            `--sensitivity` over all costs, and arrivals too
    """

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

    means = [
        SweptMean(dict(row.chosen), row.title, *row.interval)
        for row in setting_means(settings(points))
    ]
    drawn = None if figure is None else str(figure)
    return SweepAnswer(str(table), drawn, notes, [*points], means)


def check_answer(plug_in: str, broken: "ClauseBroken | None", place: str) -> CheckAnswer:
    """The verdict on a plug-in's contract; place: FILE:LINE of the plug-in's fault, if known."""
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
    rate = capacities.rate
    found = (rate.mean, rate.half_width, capacities.step, capacities.filling, first.share)
    too_long = max(highest.too_long for highest in capacities.of_seed.values())
    about = (first.costs, first.future_read, first.origin, first.about)
    return CapacityAnswer(*found, too_long, *about, _first_tokens(capacities), seeds, intervals)


def _first_tokens(capacities: "Capacities") -> str:
    from testbed.experiments.runs.run_words import first_tokens
    from testbed.run.summaries import HANDOVERS

    handovers = [highest.handovers for highest in capacities.of_seed.values()]
    return first_tokens([{HANDOVERS: times} for times in handovers]) if all(handovers) else ""


def compared_capacities(
    answers: Mapping[str, CapacityAnswer], cost_errors: Mapping[str, float], notes: Sequence[str]
) -> ComparedCapacities:
    """The capacities of several servers by their commands, beside that of the first one.
    cost_errors: of each server's costs and the first one's, if they are of another origin.
    """
    from testbed.experiments.plan.cost_errors import hide
    from testbed.study.replications import paired, within_step

    first = next(iter(answers.values()))
    servers = []
    for command, answer in answers.items():
        rates, reference = ([seed.rate for seed in of.seeds] for of in (answer, first))
        difference = paired(rates, reference)
        if answer is not first:
            difference = within_step(difference, max(answer.step, first.step))
        found, error = (difference.mean, difference.half_width), cost_errors[command]
        low, high = sorted((answer.rate, first.rate))
        is_hidden = hide(error, high / low - 1)
        servers.append(ServerCapacity(command, answer, *found, error, not is_hidden))
    return ComparedCapacities(servers, [*notes])


def _seed_capacity(seed: int, highest: "Capacity") -> SeedCapacity:
    tried = [TriedRate(*point) for point in highest.points]
    best = next(point for point in tried if point.rate == highest.rate)
    rates = (highest.completed, highest.arrived)
    found = (highest.rate, best.share_inside, best.goodput, *rates)
    return SeedCapacity(seed, *found, tried, highest.overload)


def mend_answer(mending: "Mending") -> MendAnswer:
    """The server, its changes in order, and those without a verdict."""
    from testbed.experiments.mend.window_remarks import window_remarks
    from testbed.run.summaries import costs_of

    return MendAnswer(
        mending.goal.number,
        mending.preempts,
        costs_of(mending.server.summaries[0]),
        list(mending.seeds),
        _mend_change(mending.server, mending),
        [_mend_change(tried, mending) for tried in mending.best_first],
        None if mending.best is None else mending.best.change.name,
        [tried.change.name for tried in mending.rivals],
        {change.name: reason for change, reason in mending.failed.items()},
        window_remarks(mending),
    )


def _mend_change(tried: "Tried", mending: "Mending") -> MendChange:
    from testbed.experiments.mend.change_verdicts import Verdict

    change, numbers = tried.change, list[MendNumber]()
    for name in mending.numbers:
        mean, less = tried.mean(name), mending.difference(tried, name)
        pairs = ((None, None) if of is None else (of.mean, of.half_width) for of in (mean, less))
        (value, half), (difference, half_of_it) = pairs
        numbers.append(MendNumber(name, value, half, difference, half_of_it))
    verdict = mending.verdicts.get(change, Verdict(word=""))
    counts = (len(tried.summaries), tried.num_overloaded, tried.num_rejected)
    found = (verdict.word, verdict.p_value, [*verdict.losses], numbers, *counts)
    return MendChange(change.name, list(change.words), change.note, *found)


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
    numbers, remarks = [*number_rows(comparison)], list(comparison.remarks)
    return ComparisonAnswer(runs, differences, numbers, remarks)
