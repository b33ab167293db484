"""`testbed capacity`: the highest rate of a simulated server."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from testbed.core.errors import InputError
from testbed.experiments.cli.parameters import (
    AboveZero,
    AsJson,
    AtLeastOne,
    Override,
)
from testbed.experiments.cli.served_command import NO_COMMAND, ServedCommand
from testbed.run.override_words import key_of
from testbed.study.replications import Interval

if TYPE_CHECKING:
    from testbed.experiments.cli.json_answers import CapacityAnswer
    from testbed.experiments.runs.search_progress import SearchProgress
    from testbed.study.capacity_search import Capacities
    from testbed.study.sensitivity import CapacityIntervals

RUNS = Path("runs/capacity")
SEED = "seed"
USUAL_SEEDS = 3

LONGER = "raise arrivals.duration_s, until this line goes"

Share = Annotated[float, Parameter(help="share of the requests that must meet the SLO")]
LowRate = Annotated[
    AboveZero, Parameter(metavar="RATE", help="lower first guess, moved outward as needed")
]
HighRate = Annotated[AboveZero, Parameter(metavar="RATE", help="upper first guess")]
Precision = Annotated[
    AboveZero, Parameter(metavar="P", help="the rate is known to a factor of 1 + P")
]
RunFolders = Annotated[Path, Parameter(metavar="DIR", help="folders of the simulated rates")]


Sensitivity = Annotated[
    bool,
    Parameter(
        help="also say how far costs move the rate, and these and 20 times arrivals moved by up to "
        "10 ms the share inside; costs by what they were off by if that was measured, else by "
        "3% up and down; takes some 35 runs more for each seed"
    ),
]
SeedCount = Annotated[
    AtLeastOne,
    Parameter(help="search with so many seeds, from 0 on; seed=N among the overrides is one seed"),
]


def capacity(
    *overrides: Annotated[Override, Parameter(required=True)],
    served: ServedCommand = NO_COMMAND,
    seeds: SeedCount | None = None,
    share: Share = 0.9,
    low: LowRate = 0.5,
    high: HighRate = 2.0,
    precision: Precision = 0.02,
    runs: RunFolders = RUNS,
    sensitivity: Sensitivity = False,
    json: AsJson = False,
) -> None:
    """Find the highest request rate that meets an SLO.

    slo.ttft_s=... (s to the first token), slo.tpot_s=... (s per later token), slo.itl_s=... (s
    between two tokens) or slo.e2e_s=... (s to the last token) are among the overrides; a request
    meets all of them. The rate is found by the bisection of the paper's figures, in requests/s,
    with each of three seeds; run folders are stored and reused. Each rate has 300 s of arrivals
    unless arrivals.duration_s says otherwise.
    """
    from testbed.api import capacities
    from testbed.experiments.cli.json_answers import capacity_answer
    from testbed.experiments.cli.output import print_json
    from testbed.experiments.runs.progress import status_line
    from testbed.experiments.runs.search_progress import SearchProgress
    from testbed.study.capacity_search import check_search, check_searched, usual_duration

    words = served.words(overrides)
    unseeded = [word for word in words if key_of(word) != SEED]
    check_searched(unseeded, {})
    usual = usual_duration(unseeded, {})
    unseeded += usual
    search = {"share": share, "low": low, "high": high, "precision": precision}
    if sensitivity:
        _check_sensitivity(unseeded)
    numbers = seeds_of(words, seeds)
    check_search(**search)
    _check_folder(runs)
    progress = SearchProgress(len(numbers), low, high, precision)
    _announce(progress.expected, len(numbers), usual)
    with status_line(progress.__str__):
        highest = capacities(
            *unseeded,
            seeds=numbers,
            **search,
            folder=runs,
            seen=partial(_report, progress, needed=share),
        )
    answer = capacity_answer(highest, _varied(highest, unseeded, precision) if sensitivity else {})
    if json:
        return print_json(answer)
    varied = _rule(unseeded) if sensitivity else ""
    print(*lines_of(answer, varied), sep="\n")


def lines_of(answer: "CapacityAnswer", varied: str = "") -> list[str]:
    """The range, how it was found, and the error of the costs that it rests on. varied: what was
    varied for the intervals, in words.
    """
    rates = [of_seed.rate for of_seed in answer.seeds]
    mean = Interval(answer.rate, answer.half_width, len(rates))
    text = f"{mean} req/s" if len(rates) > 1 else f"about {mean.mean:.2g} req/s"
    how = "one seed, whose error is not known (--seeds 3 gives a range)"
    if len(rates) > 1:
        how = (
            f"95% interval of {len(rates)} seeds (Student's t), which found {min(rates):.3g} to "
            f"{max(rates):.3g} in steps of {answer.step:.2g}"
        )
    needed = f"{100 * answer.share:g}% of the requests meet the SLO"
    lines = [f"capacity: {text} at which {needed}: {how}"]
    lines += _filling_lines(answer.filling, answer.step / max(rates))
    for of_seed in answer.seeds:
        inside = f"{100 * of_seed.share_inside:.1f}% of the requests inside"
        lines.append(
            f"  seed {of_seed.seed}: {of_seed.rate:.3g} req/s, {inside}, "
            f"goodput {of_seed.goodput:.3g} req/s"
        )
        if of_seed.overload:
            lines.append(f"    overloaded, in too short a run: {of_seed.overload} ({LONGER})")
    lines += _sensitivity_lines(answer, varied)
    if answer.future_read:
        lines.insert(0, f"reads the future, as no real server can: {answer.future_read}")
    return [*lines, *([f"simulated; costs: {answer.costs}"] if answer.costs else [])]


def _filling_lines(filling: float, precision: float) -> list[str]:
    """The remark that runs are too short for the precision of the search."""
    if filling <= precision:
        return []
    return [
        f"  short runs: the server fills for {100 * filling:.2g}% of the arrivals, so the rate is "
        f"up to {100 * filling:.2g}% too high ({filling / precision:.2g} times "
        f"arrivals.duration_s makes that {100 * precision:.2g}%)"
    ]


def _sensitivity_lines(answer: "CapacityAnswer", varied: str) -> list[str]:
    """The interval of each seed, with what was varied."""
    lines = [f"how sensitive: {varied}"] if answer.intervals else []
    for interval_of_seed in answer.intervals:
        low, high = interval_of_seed.lowest, interval_of_seed.highest
        text = f"{low:.3g} to {high:.3g} req/s, by costs"
        if interval_of_seed.metric == "share_inside":
            text = f"{100 * low:.1f} to {100 * high:.1f}% inside at the rate found"
        lines.append(f"  seed {interval_of_seed.seed}: {text}")
    return lines


def _check_sensitivity(words: list[str]) -> None:
    """Refuse what cannot be varied before the search, which may take minutes."""
    from testbed.experiments.runs.compose import configured
    from testbed.study.sensitivity import check_scalable

    check_scalable(configured(words))


def _rule(words: list[str]) -> str:
    from testbed.experiments.runs.compose import configured
    from testbed.study.cost_spread import rule

    return rule(configured(words))


def _varied(
    capacities: "Capacities", words: list[str], precision: float
) -> "dict[int, CapacityIntervals]":
    """The sensitivity of each seed's capacity."""
    from testbed.experiments.runs.compose import configured
    from testbed.study.sensitivity import capacity_intervals

    return {
        seed: capacity_intervals(
            configured([*words, f"{SEED}={seed}"]), highest.rate, highest.share, precision
        )
        for seed, highest in capacities.of_seed.items()
    }


def seeds_of(words: list[str], count: int | None) -> list[int]:
    """The seeds to search with: that of the words alone, or so many from 0 on."""
    word = next((word for word in words if key_of(word) == SEED), None)
    if word is None:
        return list(range(count or USUAL_SEEDS))
    if count is not None:
        raise InputError(
            key="--seeds",
            value=count,
            problem=f"does not go with {word}",
            remedy="give one of them",
        )
    seed = word.partition("=")[2]
    if not seed.isdecimal():
        raise InputError(
            key=word, problem="must be one whole number", remedy="--seeds N searches with several"
        )
    return [int(seed)]


def _check_folder(runs: Path) -> None:
    """Raise InputError for a file in the place of the folders of runs."""
    if runs.exists() and not runs.is_dir():
        raise InputError(
            key="--runs", value=runs, problem="is a file", remedy="name a folder, new or not"
        )


def _announce(num_rates: int, num_seeds: int, usual: list[str]) -> None:
    """Say what the search will simulate, before the first rate is done."""
    of_seeds = f"{num_seeds} seeds" if num_seeds > 1 else "one seed"
    text = f"capacity: about {num_rates} rates for {of_seeds}, a line for each"
    if usual:
        text = f"{text}; {usual[0]} each, for a first answer"
    print(text, file=sys.stderr, flush=True)


def _report(progress: "SearchProgress", rate: float, inside: float, needed: float) -> None:
    """Print one simulated rate at once, since the whole search may take minutes."""
    progress.ended()
    verdict = "keeps" if inside >= needed else "misses"
    line = f"{rate:>8g} req/s: {100 * inside:5.1f}% inside, {verdict} {100 * needed:g}%"
    print(line, file=sys.stderr, flush=True)
