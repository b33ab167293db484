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
from testbed.experiments.mend.changes import NONE, NOT_OF_VLLM, Change, changes_of
from testbed.experiments.mend.goals import NUMBERS, Goal, goal_of
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.error_lines import as_refusal
from testbed.experiments.runs.launchers import launched
from testbed.experiments.runs.run_folder import run_into
from testbed.experiments.vllm_server import translation
from testbed.run.override_words import key_of
from testbed.run.simulate import OVERLOAD
from testbed.run.summaries import costs_of
from testbed.study.replications import Interval, interval, paired

SLO = "slo."
BETTER, EQUAL, UNKNOWN = "better", "changes nothing", "not distinguishable"
WORSE, OTHER_COSTS = "worse", "other costs: not compared"
VERDICTS = (BETTER, UNKNOWN, EQUAL, OTHER_COSTS, WORSE)  # in the table's order


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

    def verdict(self, reference: "Tried", goal: Goal) -> str:
        """The goal's number of the runs with the change, beside the server as it is: better or
        worse if the interval of the difference, seed by seed, leaves out zero. A change that
        rejects more requests is worse, for latencies and rates leave these out.
        """
        if costs_of(self.summaries[0]) != costs_of(reference.summaries[0]):
            return OTHER_COSTS
        more = self.less(goal.number, reference)
        if more is None or self.num_rejected > reference.num_rejected:
            return WORSE
        if self._is_as(reference):
            return EQUAL
        if more.includes_zero:
            return UNKNOWN
        return BETTER if goal.sign * more.mean < 0 else WORSE

    def _is_as(self, reference: "Tried") -> bool:
        """True if every number is the reference's, with every seed."""
        return all(self._values(name) == reference._values(name) for name in NUMBERS)


@dataclass(frozen=True)
class Mending:
    """server: as it is. tried: the changes, the best first. failed: changes without a verdict, each
    with its reason. goal: by which they are judged.
    """

    goal: Goal
    seeds: Sequence[int]
    server: Tried
    tried: Sequence[Tried]
    failed: Mapping[Change, str]

    @property
    def preempts(self) -> bool:
        """True if the server preempts on any seed."""
        return self.server.num_preempted > 0

    def verdict(self, tried: Tried) -> str:
        """The verdict on a change, beside the server as it is."""
        return tried.verdict(self.server, self.goal)

    @property
    def better(self) -> list[Tried]:
        """The changes that better the goal, the best first."""
        return [tried for tried in self.tried if self.verdict(tried) == BETTER]

    @property
    def best(self) -> Tried | None:
        """The best change that an option of vLLM makes; None if none betters the goal."""
        return next((one for one in self.better if one.change.note != NOT_OF_VLLM), None)

    @property
    def numbers(self) -> list[str]:
        """The names of the numbers that the server has, the goal's first."""
        known = [name for name in NUMBERS if self.server.mean(name) is not None]
        return sorted(known, key=lambda name: name != self.goal.number)


@dataclass(frozen=True)
class Search:
    """The trials: a vLLM command with overrides, on seeds. runs: the folder of run folders.
    launcher: the words that choose the launcher. by: name of a goal; None: that of the words.
    """

    command: str
    words: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: Path
    launcher: tuple[str, ...] = ()
    by: str | None = None

    def found(self) -> Mending:
        """Run the server, then its changes if it preempts. Raises InputError if the server
        itself cannot run on one of the seeds.
        """
        goal = goal_of(self.by, has_slo=any(key_of(word).startswith(SLO) for word in self.words))
        server = translation.served(self.command, self.words).server
        as_it_is = self._tried([NONE])[NONE]
        if isinstance(as_it_is, InputError):
            raise as_it_is
        if not as_it_is.num_preempted:
            return Mending(goal, self.seeds, as_it_is, (), {})
        batch = interval([of["batch"]["mean_per_iteration"] for of in as_it_is.summaries]).mean
        results = self._tried(changes_of(server, batch))
        tried = [result for result in results.values() if isinstance(result, Tried)]
        failed = {of: str(error) for of, error in results.items() if isinstance(error, InputError)}
        ranked = sorted(tried, key=_rank(as_it_is, goal))
        return Mending(goal, self.seeds, as_it_is, ranked, failed)

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
        with redirect_stderr(StringIO()) as printed:
            words = translation.expand(self.command, [*own, *change.words])
        if change is NONE:
            print(printed.getvalue(), end="", file=sys.stderr)
        return tuple(words)


def _gathered(
    change: Change, outcomes: Sequence[dict[str, Any] | InputError]
) -> Tried | InputError:
    error = next((outcome for outcome in outcomes if isinstance(outcome, InputError)), None)
    if error is not None:
        return error
    return Tried(change, [outcome for outcome in outcomes if isinstance(outcome, dict)])


def _rank(reference: Tried, goal: Goal) -> Callable[[Tried], tuple[int, float]]:
    """The place by verdict, then by the goal's mean."""

    def rank(tried: Tried) -> tuple[int, float]:
        mean = tried.mean(goal.number)
        worst = float("inf") if mean is None else goal.sign * mean.mean
        return VERDICTS.index(tried.verdict(reference, goal)), worst

    return rank
