"""Synthetic beams: a step of many searches at once against one search at a time, in plain words."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.sched.beams import SyntheticBeams, pairs, survivors


def plain_step(totals, ahead):
    """Rank all continuations; the first of a parent stays in its place, others take free places from the left."""
    continuations = [(totals[i] + score, i, j) for i, row in enumerate(ahead) for j, score in enumerate(row)]
    best = sorted(sorted(continuations, reverse=True)[: len(totals)], key=lambda entry: entry[1:])
    free = [place for place in range(len(totals)) if place not in {parent for _, parent, _ in best}]
    parents, reached, seen = [0] * len(totals), [0.0] * len(totals), set()
    for total, parent, _ in best:
        place = free.pop(0) if parent in seen else parent
        seen.add(parent)
        parents[place], reached[place] = parent, total
    return parents, [total - max(reached) for total in reached]


@given(st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 9))
def test_many_searches_step_as_one_does(seed, k, num_tokens):
    rng = np.random.default_rng(seed)
    totals, ahead = -rng.exponential(size=(5, k)), -rng.exponential(size=(5, k, max(k, num_tokens)))
    parents, reached = survivors(totals, ahead)
    for row in range(5):
        expected, sums = plain_step(totals[row].tolist(), ahead[row].tolist())
        assert parents[row].tolist() == expected
        assert reached[row] == pytest.approx(sums)


@given(st.lists(st.integers(0, 5), min_size=6, max_size=6))
def test_pairs_name_those_who_did_not_survive(parents):
    named = pairs(tuple(sorted(parents)))
    assert {child for _, child in named} == set(range(6)) - set(parents)
    assert all(parent in parents for parent, _ in named)


def test_every_policy_sees_the_same_beams_and_every_request_its_own():
    first, second = (Request(i, 0, 10, 200, num_seqs=4, beam=True) for i in (1, 2))
    assert steps(0.6, 3, first) == steps(0.6, 3, first)
    assert steps(0.6, 3, first) != steps(0.6, 3, second)
    assert steps(0.6, 3, first) != steps(0.6, 4, first)


def steps(concentration, seed, request):
    """Who replaces whom, from the second output token to the last."""
    beams = SyntheticBeams(concentration, seed)
    return [beams.parents(request, num_generated) for num_generated in range(2, request.output_len + 1)]


def test_less_sure_candidates_change_parents_more_often():
    request = Request(0, 0, 10, 5000, num_seqs=2, beam=True)
    changes = [sum(map(bool, steps(c, 0, request))) for c in (0.1, 1.0)]
    assert changes[0] < changes[1]


def test_a_concentration_must_be_above_zero():
    with pytest.raises(InputError, match="concentration is 0"):
        SyntheticBeams(0)
