"""Groups that come back from the host, and what their swaps cost beside computing."""

import csv
from pathlib import Path

import pytest
from by_hand import ByHand, scheduler_of

from testbed.core.request import Request
from testbed.core.slots import Refusal
from testbed.cost.model import MAX_PENDING, with_swaps
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.decoding import preempt
from testbed.sched.mixed import MixedPrefill
from testbed.sched.plan import Plan
from testbed.sched.preemption import Swap
from testbed.sched.separate import SeparatePrefill

PREFILLS = [SeparatePrefill, MixedPrefill, ChunkedPrefill]
MEASURED = Path(__file__).parents[2] / "kernels" / "results" / "h200-overlap.csv"


def by_hand(prefill, policy=Paged):
    return ByHand(scheduler_of(prefill, policy(PoolSpec(256, 256, host(256)), block_size=4), Swap()))


def swapped_out(run, num_generated, output_len=20, num_seqs=1, beam=False):
    """A group that has num_generated tokens of its output and lies on the host."""
    group = run.add(Request(0, 0, 10, output_len, num_seqs=num_seqs, beam=beam))
    for _ in range(num_generated):
        run.step()
    plan = Plan()
    preempt(run.residents, plan)
    run.outputs.results(plan, 0)
    assert run.residents.swapped[0] is group
    assert group.num_generated == num_generated
    return group


def num_blocks(run, group):
    """Different blocks in the tables of a group, beam by beam and all together."""
    tables = [{extent.start for extent in run.policy.table(seq)} for seq in group.sequences]
    return [len(table) for table in tables], len(set().union(*tables))


@pytest.mark.parametrize("prefill", PREFILLS)
def test_a_group_that_comes_back_takes_the_step_at_once(prefill):
    run = by_hand(prefill)
    group = swapped_out(run, num_generated=5)
    plan, _ = run.step()
    assert plan.resumed == [group]
    assert (plan.decode_seqs, plan.decode_context) == (1, 10 + 5)
    assert group.num_generated == 6
    assert run.policy.usage().live == 15


@pytest.mark.parametrize("prefill", PREFILLS)
def test_a_group_that_comes_back_for_its_last_token_is_done_with_it(prefill):
    run = by_hand(prefill)
    group = swapped_out(run, num_generated=19)
    _, outcome = run.step()
    assert outcome.finished == [group]
    assert run.policy.usage().live == 0
    assert not run.residents.running


@pytest.mark.parametrize("prefill", PREFILLS)
def test_beams_that_come_back_take_the_candidates_of_the_step(prefill):
    alone, away = by_hand(prefill), by_hand(prefill)
    request = Request(0, 0, 10, 20, num_seqs=4, beam=True)
    stayed = alone.add(request)
    for _ in range(12):
        alone.step()
    group = swapped_out(away, num_generated=5, num_seqs=4, beam=True)
    for _ in range(7):
        away.step()
    assert num_blocks(away, group) == num_blocks(alone, stayed)
    assert away.policy.usage().saved == alone.policy.usage().saved


@pytest.mark.parametrize("prefill", PREFILLS)
def test_without_room_for_its_next_token_a_group_only_joins(prefill):
    class Tight(Paged):
        """Refuses to extend anything but the decode batch."""

        def extend(self, batch, num_tokens):
            return super().extend(batch, num_tokens) if batch is run.residents.batch else Refusal.LATER

    run = by_hand(prefill, Tight)
    group = swapped_out(run, num_generated=5)
    plan, _ = run.step()
    assert (plan.resumed, plan.decode_seqs) == ([group], 0)
    run.step()
    assert group.num_generated == 6


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
