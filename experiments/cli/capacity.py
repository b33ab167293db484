"""`testbed capacity`: the highest rate of a simulated server."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from testbed.core.errors import InputError
from testbed.experiments.cli.capacity_lines import compared_lines, lines_of
from testbed.experiments.cli.parameters import (
    AboveZero,
    AsJson,
    AtLeastOne,
    ConfigFolders,
    Override,
    seed_words,
)
from testbed.experiments.cli.served_command import NO_COMMANDS, ServedCommand, ServedCommands
from testbed.run.override_words import key_of, words_that_count

if TYPE_CHECKING:
    from testbed.experiments.cli.json_answers import CapacityAnswer
    from testbed.experiments.runs.search_progress import SearchProgress
    from testbed.study.capacity_search import Capacities
    from testbed.study.sensitivity import CapacityIntervals

RUNS = Path("runs/capacity")
SEED = "seed"
USUAL_SEEDS = 3

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
        help="also say how far costs move the rate of the first seed, and these and 20 times "
        "arrivals moved by up to 10 ms the share inside; costs by what they were off by if that "
        "was measured, else by 3% up and down; takes some 35 runs more"
    ),
]
SeedCount = Annotated[
    AtLeastOne,
    Parameter(help="search with so many seeds, from 0 on; seed=N among the overrides is one seed"),
]


@Parameter(name="*")
@dataclass(frozen=True)
class Search:
    """A search with each of the seeds."""

    seeds: SeedCount | None = None
    share: Share = 0.9
    low: LowRate = 0.5
    high: HighRate = 2.0
    precision: Precision = 0.02
    runs: RunFolders = RUNS
    sensitivity: Sensitivity = False

    def words(self, words: Sequence[str]) -> list[str]:
        """The words of each run, without its rate and seed. Raises InputError for what cannot be
        searched.
        """
        from testbed.study.capacity_search import check_search, check_searched, usual_duration

        unseeded = [word for word in words if key_of(word) != SEED]
        check_searched(unseeded, {})
        unseeded += usual_duration(unseeded, {})
        if self.sensitivity:
            _check_sensitivity(unseeded)
        check_search(self.share, self.low, self.high, self.precision)
        _check_folder(self.runs)
        return unseeded

    def words_of(
        self,
        servers: Mapping[str, ServedCommand],
        overrides: Sequence[str],
        folders: Sequence[Path],
    ) -> dict[str, list[str]]:
        """The words of the runs of each server with each value of a list, by the words that only
        it has; what one of several cannot do is refused before any search.
        """
        from testbed.experiments.cli.compared_servers import asked_of, check_built, words_of_point
        from testbed.experiments.runs.notes import print_notes
        from testbed.experiments.runs.sweep_words import sweep_points

        words_of, notes = dict[str, list[str]](), list[str]()
        for name, asked in asked_of(servers, overrides, folders).items():
            for point in sweep_points(asked):
                own = [*filter(None, [name]), *(word for word in point if word not in asked)]
                words = words_of_point(servers[name], point, own, folders, notes.append)
                words_of[" ".join(own)] = self.words(words)
        print_notes(notes)
        for words in words_of.values() if len(words_of) > 1 else ():
            check_built(words)
        return words_of

    def answer(self, words: list[str], name: str, seeds: Sequence[int]) -> "CapacityAnswer":
        """The capacity of the server that the words are of, with each seed. name: its own words
        beside those of other servers.
        """
        from testbed.api import capacities
        from testbed.experiments.cli.json_answers import capacity_answer
        from testbed.experiments.runs.progress import status_line
        from testbed.experiments.runs.search_progress import SearchProgress

        progress = SearchProgress(len(seeds), self.low, self.high, self.precision)
        _announce(progress.expected, len(seeds), name, words)
        with status_line(progress.__str__):
            highest = capacities(
                *words,
                seeds=seeds,
                share=self.share,
                low=self.low,
                high=self.high,
                precision=self.precision,
                folder=self.runs,
                began=progress.began,
                seen=partial(_report, progress, needed=self.share),
            )
        varied = _varied(highest, words, self.precision) if self.sensitivity else {}
        return capacity_answer(highest, varied)


USUAL = Search()


def capacity(
    *overrides: Annotated[Override, Parameter(required=True)],
    served: ServedCommands = NO_COMMANDS,
    search: Search = USUAL,
    config_dir: ConfigFolders | None = None,
    json: AsJson = False,
) -> None:
    """Find the highest request rate that meets an SLO.

    slo.ttft_s=... (s to the first token), slo.tpot_s=... (s per later token), slo.itl_s=... (s
    between two tokens) or slo.e2e_s=... (s to the last token) are among the overrides; a request
    meets all of them. The rate is found by the bisection of the paper's figures, in requests/s,
    with each of three seeds; run folders are stored and reused. Each rate has 300 s of arrivals
    unless arrivals.duration_s says otherwise. Several commands of servers, each after an option
    --from-vllm or --from-sglang of its own, and values with commas between, as in
    prefill_replicas=null,1, are searched in turn and compared on the same seeds.
    """
    from testbed.experiments.cli.json_answers import compared_capacities
    from testbed.experiments.cli.output import print_json
    from testbed.experiments.runs.run_words import remark_on_origins

    seeds = seeds_of([*overrides], search.seeds)
    words_of = search.words_of(served.each, words_that_count(overrides), config_dir or [])
    notes = _with_one_source(words_of)
    answers = {name: search.answer(words, name, seeds) for name, words in words_of.items()}
    if len(answers) > 1:
        remarks = [*remark_on_origins({name: answer.origin for name, answer in answers.items()})]
        remarks += _on_schedulers(words_of)
        compared = compared_capacities(answers, _cost_errors(words_of), [*notes, *remarks])
        lines = [*remarks, *compared_lines(compared.servers)]
        return print_json(compared) if json else print(*lines, sep="\n")
    for name, answer in answers.items():
        varied = _rule(words_of[name]) if search.sensitivity else ""
        print_json(answer) if json else print(*lines_of(answer, varied), sep="\n")


def _with_one_source(words_of: dict[str, list[str]]) -> list[str]:
    """Give the servers costs of one source, to be compared; returns the note on it."""
    from testbed.experiments.runs.notes import print_note
    from testbed.experiments.runs.one_source import OF_ONE_SOURCE, WHY, sources_differ

    if not sources_differ([*words_of.values()]):
        return []
    for words in words_of.values():
        words.append(OF_ONE_SOURCE)
    print_note(WHY)
    return [WHY]


def _cost_errors(words_of: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """The errors of each server's costs and the first one's together, if of another origin."""
    from testbed.experiments.plan.cost_errors import error_between
    from testbed.experiments.plan.space import Deployment, candidate_of

    servers = {name: candidate_of(Deployment({}, tuple(of))) for name, of in words_of.items()}
    first = next(iter(servers.values()))
    return {name: error_between(server, first) for name, server in servers.items()}


def _on_schedulers(words_of: dict[str, list[str]]) -> list[str]:
    from testbed.experiments.runs.compose import configured
    from testbed.experiments.runs.run_words import remark_on_schedulers

    configs = {name: configured(words) for name, words in words_of.items()}
    schedulers = {name: config.scheduler.name for name, config in configs.items()}
    drafting = {name for name, config in configs.items() if config.speculation}
    return [*remark_on_schedulers(schedulers, drafting)]


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
    """The sensitivity of the first seed's capacity."""
    from testbed.experiments.runs.compose import configured
    from testbed.study.sensitivity import capacity_intervals

    seed, highest = next(iter(capacities.of_seed.items()))
    config = configured([*words, f"{SEED}={seed}"])
    return {seed: capacity_intervals(config, highest.rate, highest.share, precision)}


def seeds_of(words: list[str], count: int | None) -> list[int]:
    """The seeds to search with: that of the words alone, or `count` from 0 on."""
    word = next((word for word in words if key_of(word) == SEED), None)
    if word is None:
        return list(range(count or USUAL_SEEDS))
    seed_words(words, count)  # refuses --seeds beside it
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


def _announce(num_rates: int, num_seeds: int, name: str, words: Sequence[str]) -> None:
    """Say what the search will simulate, before the first rate is done."""
    from testbed.study.capacity_search import DURATION, USUAL_S

    of_seeds = f"{num_seeds} seeds" if num_seeds > 1 else "one seed"
    text = f"capacity: about {num_rates} rates for {of_seeds}, a line for each"
    if name:
        text = f"{name}: {text}"
    if words[-1] == f"{DURATION}={USUAL_S}":
        text = f"{text}; {words[-1]} each, for a first answer"
    print(text, file=sys.stderr, flush=True)


def _report(progress: "SearchProgress", rate: float, inside: float, needed: float) -> None:
    """Print one simulated rate at once, since the whole search may take minutes."""
    progress.ended()
    verdict = "keeps" if inside >= needed else "misses"
    found = f"{100 * inside:5.1f}% inside, {verdict} {100 * needed:g}%"
    print(f"{progress.of_seed}{rate:>8g} req/s: {found}", file=sys.stderr, flush=True)
