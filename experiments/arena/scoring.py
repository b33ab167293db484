"""One number for a policy, for programs that search one."""

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from testbed.core.errors import InputError
from testbed.experiments.arena.bounds import LRU
from testbed.experiments.arena.cells import Condition, Row, conditions_of, row_of_run, words_of
from testbed.experiments.arena.entrants import CACHED, EVICTION, KINDS, POLICY, SCHEDULER
from testbed.experiments.arena.standings import standings
from testbed.experiments.arena.suites import suite_of
from testbed.experiments.runs.choice_names import KEYS
from testbed.experiments.runs.front_end import HydraFrontEnd
from testbed.study.scores import Score

SCORED = (EVICTION, POLICY, SCHEDULER)
NAME = "the policy"


def score(policy: Any, suite: str, rules: str) -> Score:
    """See `testbed.arena.score`."""
    kind, words = kind_of(policy), (f"+system={rules}",)
    seed = suite_of(suite).seeds[0]
    options = {kind: policy}
    beside = () if kind == POLICY else (CACHED,)
    rows = {
        (condition.name, seed): _row(condition, (*words, *beside), seed, options)
        for condition in _conditions(suite, words)
    }
    reference = _of_lru(suite, words, seed)
    (own,) = (row for row in standings({NAME: rows, LRU: reference}) if row.name == NAME)
    worse = {
        key[0]: row.rejected for key, row in rows.items() if row.rejected > reference[key].rejected
    }
    return Score(
        job=own.job.mean,
        hits=own.hits,
        ttft_p99=own.ttft_p99,
        itl_p99=own.itl_p99,
        rejected=worse,
        jobs={key[0]: 100 * row.job_s / reference[key].job_s for key, row in rows.items()},
    )


def kind_of(policy: Any) -> str:
    """The group of a class, of a pair of class and parameters, or of a partial of a class."""
    cls = policy[0] if isinstance(policy, tuple) else policy
    cls = cls.func if isinstance(cls, partial) else cls
    for kind in SCORED:
        if isinstance(cls, type) and issubclass(cls, KINDS[kind]):
            return kind
    bases = ", ".join(KINDS[kind].__name__ for kind in SCORED)
    raise InputError(
        key="policy", problem=f"{policy!r} is no class of {bases}, nor a pair (class, parameters)"
    )


@cache
def _conditions(suite: str, rules: tuple[str, ...]) -> tuple[Condition, ...]:
    chosen = suite_of(suite)
    found = (conditions_of(chosen, case, rules) for case in chosen.cases)
    return tuple(condition for of_case in found for condition in of_case)


@cache
def _of_lru(suite: str, rules: tuple[str, ...], seed: int) -> Mapping[tuple[str, int], Row]:
    words = (*rules, CACHED, f"{KEYS[EVICTION]}={LRU}")
    return {
        (condition.name, seed): _row(condition, words, seed, {})
        for condition in _conditions(suite, rules)
    }


def _row(
    condition: Condition, rules: tuple[str, ...], seed: int, options: Mapping[str, Any]
) -> Row:
    return row_of_run(HydraFrontEnd().configure(words_of(condition, (), rules, seed), options))
