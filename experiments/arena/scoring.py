"""One number for a policy, for programs that search one."""

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from testbed.core.errors import InputError
from testbed.experiments.arena.arena_bounds import LRU
from testbed.experiments.arena.arena_cell import (
    PLAIN,
    Condition,
    Row,
    conditions_of,
    row_of_run,
    words_of,
)
from testbed.experiments.arena.entrants import EVICTION, KINDS, POLICY, SCHEDULER, Entrant
from testbed.experiments.arena.rules import Rules
from testbed.experiments.arena.standings import standings
from testbed.experiments.arena.suites import suite_of
from testbed.experiments.runs.front_end import HydraFrontEnd
from testbed.study.scores import Score

SCORED = (EVICTION, POLICY, SCHEDULER)
NAME = "the policy"


def score(policy: Any, suite: str, rules: str) -> Score:
    """See `testbed.arena.score`."""
    kind, under = kind_of(policy), Rules(rules)
    seed = suite_of(suite).seeds[0]
    entrant, options = Entrant(NAME, kind, ()), {kind: policy}
    rows = {
        (condition.name, seed): _row(condition, entrant, under, seed, options)
        for condition in _conditions(suite, under)
    }
    reference = _of_lru(suite, under, seed)
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
def _conditions(suite: str, rules: Rules) -> tuple[Condition, ...]:
    chosen = suite_of(suite)
    cases = filter(rules.serves, chosen.cases)
    return tuple(at for case in cases for at in conditions_of(chosen, case, rules))


@cache
def _of_lru(suite: str, rules: Rules, seed: int) -> Mapping[tuple[str, int], Row]:
    return {
        (condition.name, seed): _row(condition, PLAIN, rules, seed, {})
        for condition in _conditions(suite, rules)
    }


def _row(
    condition: Condition, entrant: Entrant, rules: Rules, seed: int, options: Mapping[str, Any]
) -> Row:
    words = words_of(condition, entrant, rules, seed)
    return row_of_run(HydraFrontEnd().configure(words, options))
