"""Synthetic beams: many searches at once against one at a time. Recorded ones: replayed, and refused by name."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from refusals import refuses

from testbed.core.request import Request
from testbed.sched.beams import RecordedBeams, SyntheticBeams, pairs, survivors


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
def test_vectorized_beam_step_equals_single_searches(seed, k, num_tokens):
    rng = np.random.default_rng(seed)
    totals, ahead = -rng.exponential(size=(5, k)), -rng.exponential(size=(5, k, max(k, num_tokens)))
    parents, reached = survivors(totals, ahead)
    for row in range(5):
        expected, sums = plain_step(totals[row].tolist(), ahead[row].tolist())
        assert parents[row].tolist() == expected
        assert reached[row] == pytest.approx(sums)


@given(st.lists(st.integers(0, 5), min_size=6, max_size=6))
def test_fork_pairs_replace_exactly_the_non_survivors(parents):
    named = pairs(tuple(sorted(parents)))
    assert {child for _, child in named} == set(range(6)) - set(parents)
    assert all(parent in parents for parent, _ in named)


def test_synthetic_beams_depend_only_on_request_and_seed():
    first, second = (Request(i, 0, 10, 200, num_seqs=2, beam=True) for i in (1, 2))
    assert steps(0.6, 3, first) == steps(0.6, 3, first)
    assert steps(0.6, 3, first) != steps(0.6, 3, second)
    assert steps(0.6, 3, first) != steps(0.6, 4, first)


def steps(concentration, seed, request):
    """Who replaces whom, from the second output token to the last."""
    beams = SyntheticBeams(concentration, seed)
    return [beams.parents(request, num_generated) for num_generated in range(2, request.output_len + 1)]


HEADER = "request,step,parent,child\n"


def record(tmp_path, text):
    path = tmp_path / "beams.csv"
    path.write_text(text)
    return RecordedBeams(str(path))


def beam(request_id, width=3):
    return Request(request_id, 0, 10, 20, num_seqs=width, beam=True)


def test_recorded_searches_are_replayed_in_turn(tmp_path):
    beams = record(tmp_path, HEADER + "7,2,0,1\n7,4,2,0\n7,4,2,1\n9,3,1,2\n")
    assert [beams.parents(beam(0), n) for n in range(2, 6)] == [((0, 1),), (), ((2, 0), (2, 1)), ((0, 1),)]
    assert [beams.parents(beam(1), n) for n in range(2, 5)] == [(), ((1, 2),), ()]
    assert beams.parents(beam(2), 2) == ((0, 1),)


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("request,step\n", "its first line must be request,step,parent,child"),
        (HEADER, "it has no lines"),
        (HEADER + "0,1,0,1\n", "line 2: '0,1,0,1'; a line has 4 whole numbers, the step at least 2"),
        (HEADER + "0,2,0,-1\n", "line 2"),
        (HEADER + "0,2,0,\n", "line 2: '0,2,0,'; a line has 4 whole numbers"),
        (HEADER + "0,2,0,1\n0,2,1,2\n", "line 3: candidate 2 replaces, or is replaced, twice"),
        (HEADER + "0,2,0,1\n0,2,2,1\n", "line 3: candidate 1"),
        (HEADER + "0,2,0,3\n", r"\(\(0, 3\),\) at step 2 for a beam of width 3"),
    ],
)
def test_invalid_beam_records_are_refused(tmp_path, text, culprit):
    refuses(culprit, lambda: record(tmp_path, text).parents(beam(0), 2))
