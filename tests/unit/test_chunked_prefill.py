"""Chunks of a prompt where the pool has less room than the token budget."""

from testbed.core.request import Request
from testbed.core.sequence import Sequence
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.preemption import Recompute
from testbed.sched.prefill import ChunkedPrefill

STORY = tuple(range(24))


def test_a_chunk_takes_what_there_is_room_for_when_more_is_refused():
    policy = PrefixCaching(PoolSpec(64, 64), block_size=4, watermark=0)
    teller, neighbour = Sequence(98, Request(98, 0, 8, 1, prompt_ids=STORY[:8])), Sequence(99, Request(99, 0, 52, 1))
    policy.admit(teller, 8)
    policy.admit(neighbour, 52)  # one block of 16 is left
    scheduler = ChunkedPrefill(policy, Recompute(), max_num_batched_tokens=12)
    scheduler.add(Request(0, 0, 24, 1, prompt_ids=STORY))
    # Room was asked for 12 tokens, of which 8 were found: a chunk of 12 behind them would take two blocks more.
    assert step(scheduler) == [(4, 8, False)]
    assert step(scheduler) == []
    policy.release(neighbour)
    assert step(scheduler) == [(12, 12, True)]
    policy.check()


def step(scheduler):
    plan = scheduler.plan()
    scheduler.commit(plan, 1)
    return [(chunk.new, chunk.stored, chunk.last) for chunk in plan.chunks]
