"""Chunks of a prompt where the pool has less room than the token budget."""

from by_hand import ByHand, release, scheduler_of, seat, sequence

from testbed.core.request import Request
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.preemption import Recompute

STORY = tuple(range(24))


def test_a_chunk_takes_what_there_is_room_for_when_more_is_refused():
    policy = PrefixCaching(PoolSpec(64, 64), block_size=4, watermark=0)
    teller, neighbour = sequence(98, 8, prompt_ids=STORY[:8]), sequence(99, 52)
    seat(policy, [teller], 8)
    seat(policy, [neighbour], 52)  # one block of 16 is left
    run = ByHand(scheduler_of(ChunkedPrefill, policy, Recompute(), max_num_batched_tokens=12))
    run.add(Request(0, 0, 24, 1, prompt_ids=STORY))
    # Room was asked for 12 tokens, of which 8 were found: a chunk of 12 behind them would take two blocks more.
    assert step(run) == [(4, 8, False)]
    assert step(run) == []
    release(policy, neighbour)
    run.residents.room_freed()
    assert step(run) == [(12, 12, True)]
    policy.check()


def step(run):
    plan, _ = run.step()
    return [(chunk.new, chunk.stored, chunk.last) for chunk in plan.chunks]
