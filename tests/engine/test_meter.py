"""Section 3.1's kinds of memory, by hand: a prompt of 7 tokens and an output of 3, so 7, 8 and 9
live slots.
"""

import pytest
from manual_driver import scheduler_of
from tiny import MS, FastMillisecond

from testbed.core.request import Request
from testbed.engine.simulation import simulate
from testbed.memory.contiguous.reservations import ContiguousMax, ContiguousOracle, ContiguousPow2
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.run.metrics import saving
from testbed.run.oracles import with_lengths
from testbed.sched.preemption import Recompute
from testbed.sched.separate import SeparatePrefill
from testbed.sched.static_batch import StaticBatch

LIVE = 7 + 8 + 9
RESERVED = 3 + 2 + 1  # up to 10 tokens
BY_HAND = {  # reserved, internal, rounding, the pool's largest free run
    Paged: (
        1 + 0 + 1,
        0 + 0 + 2,
        0,
        56 + 56 + 52,
    ),  # 2, 2 and 3 blocks of 4; the third has slots for 2 too many
    ContiguousMax: (RESERVED, 3 * 22, 0, 3 * 32),  # 32 slots
    ContiguousPow2: (RESERVED, 3 * 1, 3 * 5, 3 * 32),  # 7 + 4 slots, in a range of 16
    ContiguousOracle: (RESERVED, 0, 3 * 6, 3 * 32),  # 7 + 3 slots, in a range of 16
}


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize("kind", BY_HAND)
def test_memory_is_split_into_its_categories(kind, fast_forward):
    totals = totals_of(kind, [Request(0, arrival_ps=0, prompt_len=7, output_len=3)], fast_forward)
    reserved, internal, rounding, largest_free = BY_HAND[kind]
    held = LIVE + reserved + internal
    seen = totals.per_iteration
    assert (seen.running, seen.live, seen.reserved, seen.internal) == (3, LIVE, reserved, internal)
    assert (seen.saved, seen.cached, seen.rounding) == (0, 0, rounding)
    assert seen.external_fragmentation == 3 * 64 - held - rounding - largest_free
    assert list(totals.over_time) == [value * MS for value in seen]


@pytest.mark.parametrize("fast_forward", [True, False])
def test_memory_saving_is_the_mean_of_ratios(fast_forward):
    """Two samples of 8 tokens: 2 blocks for 4, then 4 for 6 twice; 2, 1.5 and 1.5 are 5/3 on
    average.
    """
    totals = totals_of(
        Paged, [Request(0, arrival_ps=0, prompt_len=8, output_len=3, num_seqs=2)], fast_forward
    )
    assert (totals.shared, totals.shared_ps) == ({8: 8, 16: 16}, {8: 8 * MS, 16: 16 * MS})
    assert saving(totals) == pytest.approx({"per_iteration": 1 - 3 / 5, "over_time": 1 - 3 / 5})


def totals_of(kind, requests, fast_forward):
    lengths = {}
    policy = with_lengths(kind, lengths)(PoolSpec(64, 32), block_size=4)
    scheduler = scheduler_of(SeparatePrefill, policy, Recompute())
    return simulate(
        requests, scheduler, FastMillisecond(), 32, fast_forward=fast_forward, lengths=lengths
    ).totals


@pytest.mark.parametrize("fast_forward", [True, False])
def test_shared_unused_block_end_is_counted_once(fast_forward):
    """Between their fork and their next step the samples share a block of 8: 5 tokens, 2 to come, 1
    slot too many.
    """
    requests = [
        Request(0, arrival_ps=0, prompt_len=5, output_len=2, num_seqs=4),
        Request(1, arrival_ps=MS, prompt_len=8, output_len=1),
    ]
    policy = Paged(PoolSpec(256, 64), block_size=8)
    scheduler = scheduler_of(SeparatePrefill, policy, Recompute())
    recorder = simulate(requests, scheduler, FastMillisecond(), 64, fast_forward=fast_forward)
    spans = recorder.spans.columns()
    assert spans["live"].tolist() == [5, 5 + 8, 4 * 6]
    assert spans["reserved"].tolist() == [2, 2, 4]
    assert spans["internal"].tolist() == [1, 1, 4]


@pytest.mark.parametrize("fast_forward", [True, False])
def test_samples_of_one_token_share_their_prompt_until_their_batch_ends(fast_forward):
    """Three samples of two blocks have their token at once, and wait while the other request of the
    batch decodes: two prompts are saved in each of ten iterations.
    """
    requests = [
        Request(0, arrival_ps=0, prompt_len=8, output_len=1, num_seqs=3),
        Request(1, arrival_ps=0, prompt_len=4, output_len=10),
    ]
    lengths, policy = {}, Paged(PoolSpec(64, 32), block_size=4)
    limits = {"max_batch_size": 2, "max_padded_len": 32}
    scheduler = StaticBatch(policy, Recompute(), **limits, lengths=lengths)
    totals = simulate(
        requests, scheduler, FastMillisecond(), 32, fast_forward=fast_forward, lengths=lengths
    ).totals
    assert totals.per_iteration.saved == 10 * 2 * 8
    assert totals.over_time.saved == 10 * 2 * 8 * MS
