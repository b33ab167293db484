"""The runs of a server and of its changes on the same seeds, and what they say of each change."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.experiments.cli.working_folder import enter
from testbed.experiments.mend.change_verdicts import (
    AT_FIRST,
    BETTER,
    NO_CURE,
    OTHER_COSTS,
    WORDS,
    Verdict,
    verdict_at_first,
    verdicts,
)
from testbed.experiments.mend.goals import (
    NUMBERS,
    PREEMPTIONS,
    Goal,
    arrivals_s,
    goal_of,
    loss_of,
)
from testbed.experiments.mend.server_changes import (
    MOST_SEQUENCES,
    NONE,
    SEQUENCES_KEY,
    Change,
    changes_of,
    more_sequences,
    with_more_sequences,
)
from testbed.experiments.mend.tried import Tried
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.error_lines import as_refusal
from testbed.experiments.runs.launchers import launched
from testbed.experiments.runs.notes import no_note, print_note
from testbed.experiments.runs.progress import Progress, status_line
from testbed.experiments.runs.run_folder import run_into
from testbed.experiments.vllm_server import translation
from testbed.run.override_words import key_of
from testbed.run.summaries import remedy_for_rejections
from testbed.study.replications import Interval
from testbed.vllm.server import Server

SLO = "slo."
FIRST_SEEDS = 3  # of every change; those that may be the best run with the others too


@dataclass(frozen=True)
class Trial:
    """One run of a change with a seed, in a process of the launcher: its summary or refusal."""

    words: tuple[str, ...]
    seed: int
    runs: Path
    working_folder: str

    def __call__(self) -> dict[str, Any] | InputError:
        enter(self.working_folder, self.words)
        try:
            config = configured([*self.words, f"seed={self.seed}", "outputs=summary"])
            return run_into(config, self.runs).summary
        except (Exception, SystemExit) as error:  # not every one can leave another process
            return as_refusal(error)


@dataclass(frozen=True)
class Mending:
    """server: as it is. tried: the changes by verdict. verdicts: on each of them. failed:
    changes without a verdict, each with its reason. goal: by which they are judged. more_sequences:
    a larger limit of sequences that vLLM takes, if the server falls behind at its own.
    """

    goal: Goal
    seeds: Sequence[int]
    server: Tried
    tried: Sequence[Tried]
    verdicts: Mapping[Change, Verdict]
    failed: Mapping[Change, str]
    more_sequences: int | None = None

    @property
    def preempts(self) -> bool:
        """True if the server preempts on any seed."""
        return self.server.num_preempted > 0

    @property
    def preempts_distinguishably(self) -> bool:
        """True if the seeds tell the server's preemptions apart from none."""
        preemptions = self.server.mean(PREEMPTIONS)
        return preemptions is not None and not preemptions.includes_zero

    @property
    def fewest(self) -> Tried | None:
        """The change of vLLM's options with the fewest preemptions, fewer than the server's, that
        makes nothing worse; None if there is none.
        """
        fewer = (
            tried
            for tried in self.tried
            if tried.num_preempted < self.server.num_preempted
            and tried.change.is_proposed
            and not self.worsens(tried)
            and tried not in self.left_out
        )
        return min(fewer, key=lambda tried: tried.num_preempted, default=None)

    @property
    def better(self) -> list[Tried]:
        """The changes that better the goal, the best first."""
        return [tried for tried in self.tried if self.verdicts[tried.change].word == BETTER]

    @property
    def num_tested(self) -> int:
        """The changes whose differences count as tested together."""
        is_tested = (of.p_value is not None for of in self.verdicts.values())
        return sum(is_tested) + len(self.left_out)

    @property
    def left_out(self) -> list[Tried]:
        """The changes that ran with the first seeds alone."""
        return [tried for tried in self.tried if self.verdicts[tried.change].word in AT_FIRST]

    @property
    def without_preemptions(self) -> list[Tried]:
        """The changes that preempt on none of the seeds that they ran with, the best first."""
        return [tried for tried in self.tried if not tried.num_preempted]

    @property
    def without_overload(self) -> list[Tried]:
        """The changes that keep up with the load on all seeds they ran with, the best first."""
        return [tried for tried in self.tried if not tried.num_overloaded]

    @property
    def best(self) -> Tried | None:
        """The best change that an option of vLLM makes: the first that ends all preemptions and
        makes nothing worse, else the one that betters the goal most, whatever it makes worse. Of
        preemptions that are not distinguishable from none it ends all and betters the goal most.
        None without either, as with one seed, which separates nothing.
        """
        is_separated = len(self.seeds) > 1
        ending = [tried for tried in self.without_preemptions if self._mends(tried)]
        changes = (tried for tried in (*ending, *self._cures) if is_separated)
        return next((tried for tried in changes if tried.change.is_proposed), None)

    @property
    def best_harmless(self) -> Tried | None:
        """The change that betters the goal most of those that make nothing worse, beside a best
        one that makes something worse; None without either.
        """
        if self.best is None or not self.worsens(self.best):
            return None
        harmless = (tried for tried in self._cures if not self.worsens(tried))
        return next((tried for tried in harmless if tried.change.is_proposed), None)

    @property
    def _cures(self) -> list[Tried]:
        """The changes that better the goal, the best first; without a preemption, if the server's
        are not distinguishable from none.
        """
        is_clear = self.preempts_distinguishably
        return [tried for tried in self.better if is_clear or not tried.num_preempted]

    def _mends(self, tried: Tried) -> bool:
        """True if a change ends all preemptions, distinguishably, and makes nothing worse."""
        ends = self.preempts_distinguishably and not tried.num_preempted
        return ends and not self.worsens(tried)

    @property
    def best_first(self) -> list[Tried]:
        """The best change, if there is one, and the others by verdict."""
        best = self.best
        return sorted(self.tried, key=lambda tried: tried is not best)

    @property
    def rivals(self) -> list[Tried]:
        """The changes of vLLM's options that may be as good as the best one or better: with a
        better mean of the goal and, if the best one ends all preemptions and makes nothing worse,
        nothing worse.
        """
        if (best := self.best) is None:
            return []
        is_harmless = self._mends(best)
        return [
            tried
            for tried in self.tried
            if self._exceeds(tried, best) and not (is_harmless and self.worsens(tried))
        ]

    def _exceeds(self, tried: Tried, best: Tried) -> bool:
        word, name = self.verdicts[tried.change].word, self.goal.number
        if word in NO_CURE or not tried.change.is_proposed:
            return False
        difference = tried.less(name, best)
        return difference is not None and loss_of(name, difference.mean) < 0

    def difference(self, tried: Tried, name: str) -> Interval | None:
        """A number's difference from the server as it is; the goal's with the interval that its
        verdict has, of several tests. None of runs with other costs.
        """
        verdict = self.verdicts.get(tried.change)
        if verdict is not None and verdict.word == OTHER_COSTS:
            return None
        if name == self.goal.number and verdict is not None and verdict.difference is not None:
            return verdict.difference
        return tried.less(name, self.server)

    def worsens(self, tried: Tried) -> bool:
        """True if a change makes the goal or another number worse, or is not compared."""
        verdict = self.verdicts[tried.change]
        return verdict.word in NO_CURE or bool(verdict.losses)

    @property
    def arrivals_s(self) -> float:
        """The seconds of arrivals of all seeds of the server as it is."""
        return sum(map(arrivals_s, self.server.summaries))

    @property
    def numbers(self) -> list[str]:
        """The names of the numbers that the server has, the goal's first."""
        names = [name for name in NUMBERS if self.server.mean(name) is not None]
        return sorted(names, key=lambda name: name != self.goal.number)


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
        served = translation.served(self.command, self.words)
        as_it_is = self._tried([NONE], self.seeds)[NONE]
        if isinstance(as_it_is, InputError):
            raise as_it_is
        if as_it_is.num_rejected == as_it_is.num_arrived:
            raise InputError(
                key="trace",
                problem="every request is longer than the server takes",
                remedy=remedy_for_rejections(as_it_is.summaries[0]),
            )
        more = more_sequences(served.server) if _is_limited(as_it_is, served.server) else None
        if not as_it_is.num_preempted:
            return Mending(goal, self.seeds, as_it_is, (), {}, {}, more)
        own_blocks = translation.own_blocks(served, self.words)
        changes = changes_of(served.server, as_it_is.num_held, own_blocks)
        results = self._screened(changes, as_it_is, goal)
        further = self._with_more_sequences([as_it_is, *results.values()], served, own_blocks)
        results |= self._screened([*further], as_it_is, goal)
        tried = [result for result in results.values() if isinstance(result, Tried)]
        failed = {of: str(error) for of, error in results.items() if isinstance(error, InputError)}
        of_changes = {
            of.change: verdict
            for of, verdict in zip(tried, verdicts(tried, as_it_is, goal), strict=True)
        }
        ranked = sorted(tried, key=_rank(of_changes, goal))
        return Mending(goal, self.seeds, as_it_is, ranked, of_changes, failed, more)

    def _with_more_sequences(
        self, results: Sequence[Tried | InputError], served: translation.Served, own_blocks: int
    ) -> Iterator[Change]:
        """More sequences, if the server falls behind at its limit, and beside the change of vLLM's
        options that preempts least of those with which it does so; of equals the last, as larger
        pools come later.
        """
        limited = [of for of in results if isinstance(of, Tried) and _is_limited(of, served.server)]
        alone = [of for of in limited if of.change == NONE]
        changed = [of for of in reversed(limited) if of.change != NONE]
        fewest = sorted(changed, key=lambda of: of.num_preempted / len(of.summaries))[:1]
        command = served.command.updated(MOST_SEQUENCES, str(more_sequences(served.server)))
        more_blocks = translation.own_blocks(served._replace(command=command), self.words)
        for of in (*alone, *fewest):
            yield with_more_sequences(of.change, served.server, own_blocks, more_blocks)

    def _screened(
        self, changes: Sequence[Change], as_it_is: Tried, goal: Goal
    ) -> dict[Change, Tried | InputError]:
        """The runs of each change with the first seeds, and with all if it may be the best then."""
        results = self._tried(changes, self.seeds[:FIRST_SEEDS])
        further = {
            of.change: of
            for of in results.values()
            if isinstance(of, Tried) and verdict_at_first(of, as_it_is, goal) is None
        }
        if others := self.seeds[FIRST_SEEDS:]:
            for change, result in self._tried([*further], others).items():
                results[change] = _joined(further[change], result)
        return results

    def _tried(
        self, changes: Sequence[Change], seeds: Sequence[int]
    ) -> dict[Change, Tried | InputError]:
        """The runs of each change with these seeds, or the reason why one of them is missing."""
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
            jobs[change] = [Trial(words, seed, *here) for seed in seeds]
        flat = [job for of_change in jobs.values() for job in of_change]
        progress = Progress("runs")
        with status_line(lambda: f"mend{progress}"):
            outcomes = self._outcomes(flat, progress)
            for change in jobs:
                results[change] = _gathered(change, [next(outcomes) for _ in seeds])
                _print_status(f"{change.name}: run with {len(seeds)} seeds")
        return results

    def _outcomes(
        self, jobs: Sequence[Trial], progress: Progress
    ) -> Iterator[dict[str, Any] | InputError]:
        """The summary or the error of each job, in order."""
        _print_status(f"mend: {len(jobs)} runs")
        for done, outcome in enumerate(launched(self.launcher, jobs, self.runs), start=1):
            progress.checked(done, len(jobs))
            yield outcome

    def _words(self, change: Change) -> tuple[str, ...]:
        """The words of the server with a change, which takes the place of the user's own."""
        changed = set(map(key_of, change.words))
        own = [word for word in self.words if key_of(word) not in changed]
        on_note = print_note if change is NONE else no_note
        return tuple(translation.expand(self.command, [*own, *change.words], on_note))


def _print_status(line: str) -> None:
    """Print at once, since the whole search may take minutes."""
    print(line, file=sys.stderr, flush=True)


def _gathered(
    change: Change, outcomes: Sequence[dict[str, Any] | InputError]
) -> Tried | InputError:
    error = next((outcome for outcome in outcomes if isinstance(outcome, InputError)), None)
    if error is not None:
        return error
    return Tried(change, [outcome for outcome in outcomes if isinstance(outcome, dict)])


def _joined(first: Tried, others: Tried | InputError) -> Tried | InputError:
    """The runs of a change with more seeds, or the reason why one of them is missing."""
    if isinstance(others, Tried):
        return replace(first, summaries=[*first.summaries, *others.summaries])
    return others


def _rank(of_changes: Mapping[Change, Verdict], goal: Goal) -> Callable[[Tried], tuple[float, ...]]:
    """The place by verdict, then by the goal's mean; what betters nothing and makes something worse
    comes after what does not.
    """

    def rank(tried: Tried) -> tuple[float, ...]:
        mean, verdict = tried.mean(goal.number), of_changes[tried.change]
        worst = float("inf") if mean is None else loss_of(goal.number, mean.mean)
        is_only_worse = verdict.word != BETTER and bool(verdict.losses)
        return WORDS.index(verdict.word), is_only_worse, worst

    return rank


def _is_limited(tried: Tried, server: Server) -> bool:
    """True if it falls behind at the server's limit of sequences, and vLLM takes more."""
    limit, change = server.limits.max_num_seqs, tried.change
    is_set = SEQUENCES_KEY in map(key_of, change.words)
    may_have_more = change.is_proposed and not is_set and more_sequences(server) > limit
    return may_have_more and tried.falls_behind_at(limit)
