"""The runs of a server and of its changes on the same seeds, and what they say of each change."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.experiments.cli.working_folder import names_a_plug_in, put_last
from testbed.experiments.mend.changes import NONE, Change, changes_of
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.error_lines import as_refusal
from testbed.experiments.runs.launchers import launched
from testbed.experiments.runs.run_folder import run_into
from testbed.experiments.vllm_server import translation
from testbed.run.override_words import key_of
from testbed.run.simulate import OVERLOAD
from testbed.run.summaries import costs_of
from testbed.study.replications import Interval, interval, paired

PREEMPTIONS, LATENCY = "preemptions/h", "latency, s"
NUMBERS: dict[str, Callable[[Mapping[str, Any]], float | None]] = {
    PREEMPTIONS: lambda of: 3600 * sum(of["preemptions"].values()) / of["simulated_s"],
    "TTFT p99, s": lambda of: of["ttft_s"]["p99"],
    "TPOT p99, s": lambda of: of["tpot_s"]["p99"],
    LATENCY: lambda of: of["e2e_s"]["mean"],
    "req/s": lambda of: of["throughput"]["requests_per_s"],
}
MENDS, TRADES, FEWER = "mends", "mends, and answers later", "some fewer"
UNKNOWN, EQUAL = "not distinguishable", "changes nothing"
WORSE, OTHER_COSTS = "makes it worse", "other costs: not compared"
VERDICTS = (MENDS, TRADES, FEWER, UNKNOWN, EQUAL, OTHER_COSTS, WORSE)  # in the table's order
MENDED = 0.5  # of the preemptions at least


@dataclass(frozen=True)
class Trial:
    """One run of a change with a seed, in a process of the launcher: its summary or refusal."""

    words: tuple[str, ...]
    seed: int
    runs: Path
    working_folder: str

    def __call__(self) -> dict[str, Any] | InputError:
        os.chdir(self.working_folder)
        if names_a_plug_in(self.words):
            put_last(self.working_folder)
        try:
            config = configured([*self.words, f"seed={self.seed}", "outputs=summary"])
            return run_into(config, self.runs).summary
        except (Exception, SystemExit) as error:  # not every one can leave another process
            return as_refusal(error)


@dataclass(frozen=True)
class Tried:
    """A change and its runs, one for each seed, in order."""

    change: Change
    summaries: Sequence[Mapping[str, Any]]

    def mean(self, name: str) -> Interval | None:
        """A number over the seeds; None if a seed has none."""
        values = self._values(name)
        return None if values is None else interval(values)

    def less(self, name: str, reference: "Tried") -> Interval | None:
        """The difference from the reference, seed by seed; None if a seed has none."""
        values, others = self._values(name), reference._values(name)
        return None if values is None or others is None else paired(values, others)

    def _values(self, name: str) -> list[float] | None:
        values = [NUMBERS[name](summary) for summary in self.summaries]
        known = [value for value in values if value is not None]
        return known if len(known) == len(values) else None

    @property
    def num_overloaded(self) -> int:
        """Seeds on which the server did not keep up with the arrivals."""
        return sum(bool(summary.get(OVERLOAD)) for summary in self.summaries)

    @property
    def num_preempted(self) -> int:
        """Preemptions over all seeds."""
        return sum(sum(summary["preemptions"].values()) for summary in self.summaries)

    @property
    def num_rejected(self) -> int:
        """Requests that were rejected, over all seeds."""
        return sum(summary["requests"]["rejected"] for summary in self.summaries)

    def verdict(self, reference: "Tried") -> str:
        """Numbers of the runs with the change, beside the server as it is."""
        if costs_of(self.summaries[0]) != costs_of(reference.summaries[0]):
            return OTHER_COSTS
        fewer = self.less(PREEMPTIONS, reference)
        later = self.less(LATENCY, reference)
        if fewer is None or later is None or self.num_rejected > reference.num_rejected:
            return WORSE
        if fewer.mean == later.mean == 0 and not (fewer.half_width or later.half_width):
            return EQUAL
        is_later = later.mean > 0 and not later.includes_zero
        if fewer.includes_zero:
            return WORSE if is_later else UNKNOWN
        if fewer.mean > 0:
            return WORSE
        before = reference.mean(PREEMPTIONS)
        if before is not None and -fewer.mean < MENDED * before.mean:
            return WORSE if is_later else FEWER
        return TRADES if is_later else MENDS


@dataclass(frozen=True)
class Mending:
    """server: as it is. tried: the changes, the best first. failed: changes without a verdict, each
    with its reason.
    """

    seeds: Sequence[int]
    server: Tried
    tried: Sequence[Tried]
    failed: Mapping[Change, str]

    @property
    def preempts(self) -> bool:
        """True if the server preempts on any seed."""
        return self.server.num_preempted > 0


@dataclass(frozen=True)
class Search:
    """The trials: a vLLM command with overrides, on seeds. runs: the folder of run folders.
    launcher: the words that choose the launcher.
    """

    command: str
    words: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: Path
    launcher: tuple[str, ...] = ()

    def found(self) -> Mending:
        """Run the server, then its changes if it preempts. Raises InputError if the server
        itself cannot run on one of the seeds.
        """
        server = translation.served(self.command, self.words).server
        as_it_is = self._tried([NONE])[NONE]
        if isinstance(as_it_is, InputError):
            raise as_it_is
        if not as_it_is.num_preempted:
            return Mending(self.seeds, as_it_is, (), {})
        batch = interval([of["batch"]["mean_per_iteration"] for of in as_it_is.summaries]).mean
        results = self._tried(changes_of(server, batch))
        tried = [result for result in results.values() if isinstance(result, Tried)]
        failed = {of: str(error) for of, error in results.items() if isinstance(error, InputError)}
        return Mending(self.seeds, as_it_is, sorted(tried, key=_rank(as_it_is)), failed)

    def _tried(self, changes: Sequence[Change]) -> dict[Change, Tried | InputError]:
        """The runs of each change, or the reason why one of them is missing."""
        results = dict[Change, Tried | InputError]()
        jobs = dict[Change, list[Trial]]()
        for change in changes:
            try:
                words = self._words(change)
            except InputError as error:
                if change is NONE:
                    raise
                results[change] = error
                continue
            here = (self.runs.absolute(), os.getcwd())
            jobs[change] = [Trial(words, seed, *here) for seed in self.seeds]
        flat = [job for of_change in jobs.values() for job in of_change]
        outcomes = iter(launched(self.launcher, flat, self.runs))
        for change in jobs:
            results[change] = _gathered(change, [next(outcomes) for _ in self.seeds])
            print(f"{change.name}: run with {len(self.seeds)} seeds", file=sys.stderr, flush=True)
        return results

    def _words(self, change: Change) -> tuple[str, ...]:
        """The words of the server with a change, which takes the place of the user's own."""
        changed = set(map(key_of, change.words))
        own = [word for word in self.words if key_of(word) not in changed]
        with redirect_stderr(StringIO()) as said:
            words = translation.expand(self.command, [*own, *change.words])
        if change is NONE:
            print(said.getvalue(), end="", file=sys.stderr)
        return tuple(words)


def _gathered(
    change: Change, outcomes: Sequence[dict[str, Any] | InputError]
) -> Tried | InputError:
    error = next((outcome for outcome in outcomes if isinstance(outcome, InputError)), None)
    if error is not None:
        return error
    return Tried(change, [outcome for outcome in outcomes if isinstance(outcome, dict)])


def _rank(reference: Tried) -> Callable[[Tried], tuple[int, float]]:
    """By verdict, then by mean latency."""

    def rank(tried: Tried) -> tuple[int, float]:
        latency = tried.mean(LATENCY)
        worst = float("inf") if latency is None else latency.mean
        return VERDICTS.index(tried.verdict(reference)), worst

    return rank
