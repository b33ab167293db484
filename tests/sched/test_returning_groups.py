"""Groups that come back after recompute or from the host: what is computed, shared and published;
costs of swaps.
"""

import csv
from pathlib import Path

import pytest
from manual_driver import (
    ITERATION_LEVEL,
    ManualDriver,
    admit_and_prefill,
    paged,
    release,
    scheduler_of,
    sequence,
)

import testbed.kernels
from testbed.core.request import Request
from testbed.core.slots import Refusal
from testbed.cost.swap_overlap import MAX_PENDING, with_swaps
from testbed.memory.paged.paged import Paged
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.preemption import Recompute, Swap
from testbed.sched.separate import SeparatePrefill

TEXT = tuple(range(100, 110))


def driver(kind, policy, **limits):
    return ManualDriver(scheduler_of(kind, policy, Recompute(), **limits))


def preempted(run, prompt_len=10, num_seqs=3, num_generated=5):
    """A group that has some output and has lost its slots."""

    def counts():
        return {(seq.num_slots, seq.num_stored, seq.num_preemptions) for seq in group.sequences}

    group = run.add(
        Request(
            0,
            arrival_ps=0,
            prompt_len=prompt_len,
            output_len=20,
            num_seqs=num_seqs,
            prompt_ids=TEXT[:prompt_len],
        )
    )
    assert counts() == {(0, 0, 0)}
    while group.num_generated < num_generated:
        run.step()
    run.preempt()
    assert counts() == {(0, 0, 1)}
    return group


def step(run):
    return run.step()[0]


def chunks(plan):
    return [(chunk.new, chunk.num_stored) for chunk in plan.chunks]


@pytest.mark.parametrize("prefill", ITERATION_LEVEL)
def test_group_recompute_computes_shared_blocks_once(prefill):
    run = driver(prefill, paged())
    group = preempted(run)
    plan = step(run)
    assert chunks(plan) == [(15, 0), (7, 8), (7, 8)]
    assert not plan.ops
    first, second, third = (
        [extent.start for extent in run.policy.table(seq)] for seq in group.sequences
    )
    assert first[:2] == second[:2] == third[:2]
    assert len({*first[2:], *second[2:], *third[2:]}) == 6


def test_group_recompute_continues_over_iterations():
    run = driver(SeparatePrefill, paged(), max_num_batched_tokens=16)
    group = preempted(run)
    plans = [step(run) for _ in range(3)]
    assert [chunks(plan) for plan in plans] == [[(15, 0)], [(7, 8), (7, 8)], []]
    assert plans[2].decode_seqs == 3
    assert group.num_generated == 7


def test_only_stored_blocks_are_hit_after_repeated_preemption():
    policy = paged(kind=PrefixCaching)
    run = driver(ChunkedPrefill, policy, max_num_batched_tokens=6)
    preempted(run)
    crowd_out(policy)
    assert chunks(step(run)) == [(6, 0)]
    run.preempt()
    assert policy.usage().cached == 4  # one whole block
    assert [chunks(step(run)) for _ in range(2)] == [[(6, 4)], [(5, 10), (1, 8)]]


def crowd_out(policy):
    """Another sequence takes the whole pool and leaves."""
    other = sequence(99, 64)
    admit_and_prefill(policy, [other], 64)
    release(policy, other)


MEASURED = Path(testbed.kernels.__file__).parent / "results" / "h200-overlap.csv"


def swapping(prefill, policy=Paged):
    return ManualDriver(
        scheduler_of(
            prefill, paged(64, policy, host_blocks=64, max_len=256, watermark=0.01), Swap()
        )
    )


def swapped_out(run, num_generated, output_len=20, num_seqs=1, beam=False):
    """A group that has num_generated tokens of its output and lies on the host."""
    group = run.add(
        Request(0, arrival_ps=0, prompt_len=10, output_len=output_len, num_seqs=num_seqs, beam=beam)
    )
    for _ in range(num_generated):
        run.step()
    run.preempt()
    assert run.state.swapped[0] is group
    assert group.num_generated == num_generated
    return group


@pytest.mark.parametrize("prefill", ITERATION_LEVEL)
@pytest.mark.parametrize(("num_generated", "live"), [(5, 15), (19, 0)])
def test_swapped_in_group_decodes_in_the_same_step(prefill, num_generated, live):
    run = swapping(prefill)
    group = swapped_out(run, num_generated)
    plan, outcome = run.step()
    assert plan.swapped_in == [group]
    assert (plan.decode_seqs, plan.decode_context) == (1, 10 + num_generated)
    assert group.num_generated == num_generated + 1
    assert outcome.finished == ([] if live else [group])
    assert run.policy.usage().live == live


@pytest.mark.parametrize("prefill", ITERATION_LEVEL)
def test_swapped_in_group_without_free_slot_skips_the_step(prefill):
    class Tight(Paged):
        """Refuses to extend anything but the decode batch."""

        def extend(self, batch, num_tokens):
            return super().extend(batch, num_tokens) if batch is run.state.batch else Refusal.LATER

    run = swapping(prefill, Tight)
    group = swapped_out(run, num_generated=5)
    plan, _ = run.step()
    assert (plan.swapped_in, plan.decode_seqs) == ([group], 0)
    run.step()
    assert group.num_generated == 6


def test_swaps_overlap_with_computing_but_for_one_layer():
    assert with_swaps(0, 900, 10, 40) == 900
    assert with_swaps(4000, 400, 10, 40) == 4000 + 10
    assert with_swaps(400, 4000, 10, 40) == 4000 + 10
    assert with_swaps(4000, 4000, 4 * MAX_PENDING, 40) == 3000 + 4000 + 25


def test_overlapped_swap_time_is_near_the_measured():
    with MEASURED.open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    assert len(rows) == 12
    for row in rows:
        num_copies = 2 * 40 * 512 // int(row["block_size"])
        computing, copies = (
            round(float(row[name]) * 1e9) for name in ("computing_ms", "copies_ms")
        )
        assert with_swaps(computing, copies, num_copies, 40) / 1e9 == pytest.approx(
            float(row["together_ms"]), rel=0.15
        )
