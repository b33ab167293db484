"""Groups that come back from the host, and what their swaps cost beside computing."""

import csv
from pathlib import Path

import pytest

from testbed.core.request import Request
from testbed.core.slots import Refusal
from testbed.cost.model import MAX_PENDING, with_swaps
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.plan import Plan
from testbed.sched.preemption import Swap
from testbed.sched.prefill import ChunkedPrefill, MixedPrefill, SeparatePrefill

PREFILLS = [SeparatePrefill, MixedPrefill, ChunkedPrefill]
MEASURED = Path(__file__).parents[2] / "kernels" / "results" / "h200-overlap.csv"


def scheduler_of(prefill, policy=Paged):
    return prefill(policy(PoolSpec(256, 256, 256), block_size=4), Swap())


def step(scheduler):
    plan = scheduler.plan()
    return plan, scheduler.commit(plan, 1)


def swapped_out(scheduler, num_generated, output_len=20, num_seqs=1, beam=False):
    """A group that has num_generated tokens of its output and lies on the host."""
    group = scheduler.add(Request(0, 0, 10, output_len, num_seqs=num_seqs, beam=beam))
    for _ in range(num_generated):
        step(scheduler)
    scheduler.preempt(Plan())
    assert scheduler.swapped[0] is group
    assert group.num_generated == num_generated
    return group


def num_blocks(scheduler, group):
    """Different blocks in the tables of a group, beam by beam and all together."""
    tables = [{extent.start for extent in scheduler.policy.table(seq)} for seq in group.sequences]
    return [len(table) for table in tables], len(set().union(*tables))


@pytest.mark.parametrize("prefill", PREFILLS)
def test_a_group_that_comes_back_takes_the_step_at_once(prefill):
    scheduler = scheduler_of(prefill)
    group = swapped_out(scheduler, num_generated=5)
    plan, _ = step(scheduler)
    assert plan.resumed == [group]
    assert (plan.decode_seqs, plan.decode_context) == (1, 10 + 5)
    assert group.num_generated == 6
    assert scheduler.policy.usage().live == 15


@pytest.mark.parametrize("prefill", PREFILLS)
def test_a_group_that_comes_back_for_its_last_token_is_done_with_it(prefill):
    scheduler = scheduler_of(prefill)
    group = swapped_out(scheduler, num_generated=19)
    _, outcome = step(scheduler)
    assert outcome.finished == [group]
    assert scheduler.policy.usage().live == 0
    assert not scheduler.running


@pytest.mark.parametrize("prefill", PREFILLS)
def test_beams_that_come_back_take_the_candidates_of_the_step(prefill):
    alone, away = scheduler_of(prefill), scheduler_of(prefill)
    request = Request(0, 0, 10, 20, num_seqs=4, beam=True)
    stayed = alone.add(request)
    for _ in range(12):
        step(alone)
    group = swapped_out(away, num_generated=5, num_seqs=4, beam=True)
    for _ in range(7):
        step(away)
    assert num_blocks(away, group) == num_blocks(alone, stayed)
    assert away.policy.usage().saved == alone.policy.usage().saved


@pytest.mark.parametrize("prefill", PREFILLS)
def test_without_room_for_its_next_token_a_group_only_joins(prefill):
    class Tight(Paged):
        """Refuses to extend anything but the batch."""

        def extend(self, seqs, num_tokens):
            return Refusal.LATER if isinstance(seqs, list) else super().extend(seqs, num_tokens)

    scheduler = scheduler_of(prefill, Tight)
    group = swapped_out(scheduler, num_generated=5)
    plan, _ = step(scheduler)
    assert (plan.resumed, plan.decode_seqs) == ([group], 0)
    step(scheduler)
    assert group.num_generated + scheduler.batch.steps - group.joined_at == 6


def test_swaps_hide_behind_computing_but_for_one_layer_and_what_the_driver_does_not_take():
    assert with_swaps(0, 900, 10, 40) == 900
    assert with_swaps(4000, 400, 10, 40) == 4000 + 10
    assert with_swaps(400, 4000, 10, 40) == 4000 + 10
    assert with_swaps(4000, 4000, 4 * MAX_PENDING, 40) == 3000 + 4000 + 25


def test_the_price_of_hidden_swaps_is_near_what_was_measured():
    with MEASURED.open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    assert len(rows) == 12
    for row in rows:
        num_copies = 2 * 40 * 512 // int(row["block_size"])
        computing, copies = (round(float(row[name]) * 1e9) for name in ("computing_ms", "copies_ms"))
        assert with_swaps(computing, copies, num_copies, 40) / 1e9 == pytest.approx(float(row["together_ms"]), rel=0.15)
