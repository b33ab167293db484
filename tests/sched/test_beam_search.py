"""Beams, synthetic and recorded; copies of forks if memory is not shared: what they copy, that
they come first.
"""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from manual_driver import ITERATION_LEVEL, ManualDriver, scheduler_of, sequence
from refusals import refuses

from testbed.core.request import Request
from testbed.core.slots import Copy, Extent
from testbed.memory.capabilities import capabilities_of
from testbed.memory.contiguous.reservations import ContiguousMax, ContiguousOracle
from testbed.memory.policy import MemoryPolicy, PoolSpec
from testbed.run.oracles import with_lengths
from testbed.sched.beam_search import (
    NUM_SEARCHES,
    NUM_STEPS,
    BeamModel,
    RecordedBeams,
    SyntheticBeams,
    pairs,
    search,
    survivors,
)
from testbed.sched.preemption import Recompute
from testbed.sched.static_batch import StaticBatch


def plain_step(totals, ahead):
    """Rank all continuations; the first of a parent stays in its place, others take free places
    from the left.
    """
    continuations = [
        (totals[i] + score, i, j) for i, row in enumerate(ahead) for j, score in enumerate(row)
    ]
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
    first, second = (
        Request(i, arrival_ps=0, prompt_len=10, output_len=50, num_seqs=2, beam=True)
        for i in (1, 2)
    )
    assert steps(0.6, 3, first) == steps(0.6, 3, first)
    assert steps(0.6, 3, first) != steps(0.6, 3, second)
    assert steps(0.6, 3, first) != steps(0.6, 4, first)


def steps(concentration, seed, request):
    """The replacements of candidates, from the second output token to the last."""
    beams = SyntheticBeams(concentration, seed)
    return [
        beams.parents(request, num_generated) for num_generated in range(2, request.output_len + 1)
    ]


@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.one_of(st.integers(2, 60), st.integers(NUM_SEARCHES * NUM_STEPS - 9, 10**6)),
    st.integers(-1, 60),
)
def test_synthetic_changes_are_the_steps_at_which_parents_change(request_id, width, first, more):
    request = Request(request_id, 0, 10, output_len=first + more, num_seqs=width, beam=True)
    beams = SyntheticBeams()
    plain = [change for change in BeamModel.changes(beams, request, first) if change[1]]
    assert [*beams.changes(request, first)] == plain


HEADER = "request,step,parent,child\n"


def record(tmp_path, text):
    path = tmp_path / "beams.csv"
    path.write_text(text)
    return RecordedBeams(str(path))


def beam(request_id, width=3):
    return Request(
        request_id, arrival_ps=0, prompt_len=10, output_len=20, num_seqs=width, beam=True
    )


def test_recorded_searches_are_replayed_in_turn(tmp_path):
    beams = record(tmp_path, HEADER + "7,2,0,1\n7,4,2,0\n7,4,2,1\n9,3,1,2\n")
    assert [beams.parents(beam(0), n) for n in range(2, 6)] == [
        ((0, 1),),
        (),
        ((2, 0), (2, 1)),
        ((0, 1),),
    ]
    assert [beams.parents(beam(1), n) for n in range(2, 5)] == [(), ((1, 2),), ()]
    assert beams.parents(beam(2), 2) == ((0, 1),)


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("request,step\n", "its first line must be request,step,parent,child"),
        ("", "its first line must be request,step,parent,child"),
        (HEADER, "it has no lines"),
        (
            HEADER + "0,1,0,1\n",
            "line 2: '0,1,0,1'; a line has 4 whole numbers, the step at least 2",
        ),
        (HEADER + "0,2,0,-1\n", "line 2"),
        (HEADER + "0,2,0,\n", "line 2: '0,2,0,'; a line has 4 whole numbers"),
        (HEADER + "0,2,0,1\n0,2,1,2\n", "line 3: candidate 2 replaces, or is replaced, twice"),
        (HEADER + "0,2,0,1\n0,2,2,1\n", "line 3: candidate 1"),
        (HEADER + "0,2,0,3\n", r"\(\(0, 3\),\) at step 2 for a beam of width 3"),
    ],
)
def test_invalid_beam_records_are_refused(tmp_path, text, culprit):
    refuses(culprit, lambda: record(tmp_path, text).parents(beam(0), 2))


def static(policy):
    lengths = getattr(policy, "lengths", None)
    lengths = {} if lengths is None else lengths
    limits = {"max_batch_size": 4, "max_padded_len": 64}
    return ManualDriver(StaticBatch(policy, Recompute(), **limits, lengths=lengths))


def driver(kind, policy):
    return ManualDriver(scheduler_of(kind, policy, Recompute()))


def pool(kind=ContiguousMax):
    return with_lengths(kind, {})(PoolSpec(1024, 64), block_size=4)


def copies_of(plan):
    return [copy for ops in plan.ops for copy in ops.copies]


def held(run):
    """The slots that the residents hold, and what the allocator's rounding adds to them."""
    extents = [*run.policy.non_sequence_slots().rounding]
    extents += [
        e
        for group in run.state.running.values()
        for seq in group.resident
        for e in run.policy.table(seq)
    ]
    return {slot for start, length in extents for slot in range(start, start + length)}


def served(run):
    """All copies of all plans until nothing is left to do; each lies in slots that are held."""
    copies = []
    while run.state.running or run.state.waiting:
        plan = run.scheduler.plan()
        for copy in copies_of(plan):
            ends = {copy.dst, copy.dst + copy.length - 1, copy.src}
            assert ends <= held(run), f"{copy} into slots that were returned"
            copies.append(copy)
        run.carry_out(plan)
    return copies


@pytest.mark.parametrize(
    "make", [static, *[lambda policy, kind=kind: driver(kind, policy) for kind in ITERATION_LEVEL]]
)
def test_group_finished_at_its_first_token_is_not_forked(make):
    run = make(pool(ContiguousOracle))
    run.add(Request(0, arrival_ps=0, prompt_len=10, output_len=1, num_seqs=3))
    assert served(run) == []
    run.add(Request(1, arrival_ps=0, prompt_len=10, output_len=1, num_seqs=3))
    run.add(Request(2, arrival_ps=0, prompt_len=10, output_len=4, num_seqs=2))
    (copy,) = served(run)
    assert copy.length == 16  # the range of four blocks that 14 slots get


def test_static_batches_copy_only_within_their_slots():
    run = static(pool())
    for i in range(9):
        run.add(Request(i, 0, 5 + i, 1 + i % 3, num_seqs=2))
    assert [copy.length for copy in served(run)] == [64 for i in range(9) if i % 3]


@pytest.mark.parametrize("kind", ITERATION_LEVEL)
def test_preemption_drops_pending_fork_copies(kind):
    run = driver(kind, pool())
    groups = [
        run.add(Request(i, arrival_ps=0, prompt_len=10 + i, output_len=9, num_seqs=2))
        for i in range(2)
    ]
    run.step()
    assert run.preempt().preempted == groups[1:]
    assert [copy.length for copy in copies_of(run.scheduler.plan())] == [64]


class InPieces(MemoryPolicy):
    """Tables of several extents made up by hand."""

    def table(self, seq):
        return [[Extent(0, 4), Extent(20, 4), Extent(8, 4)], [Extent(40, 6), Extent(60, 6)]][
            seq.seq_id
        ]

    admit = extend = release = usage = None


def test_a_fork_copies_all_extents_of_a_table():
    parent, child = sequence(0, 10), sequence(1, 10)
    parent.num_slots = parent.num_stored = 10
    ops = capabilities_of(InPieces()).fork(parent, child)
    assert ops.copies == (Copy(0, 40, 4), Copy(20, 44, 2), Copy(22, 60, 2), Copy(8, 62, 2))


def test_beams_of_a_width_are_searched_before_the_first_request():
    search.cache_clear()
    beams = SyntheticBeams(seed=9)
    beams.prepare(3)
    assert search.cache_info().currsize == 1
    beams.parents(Request(0, 0, 8, 8, num_seqs=3), 2)
    assert search.cache_info().misses == 1
