"""The plain way to a hit rate: every prompt through the policy itself, one at a time.

Without a clock the policy admits a prompt, publishes its blocks and releases them before the next
one comes. It serves every eviction order, and `stack_distances` is tested against it.
"""

from testbed.core.request import Incoming, Rows
from testbed.core.sequence import Sequence
from testbed.core.slots import Refusal
from testbed.memory.pools import PoolSpec
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching


def replayed_hits(rows: Rows, block_size: int, num_blocks: int, order: EvictionOrder) -> list[int]:
    """Blocks that each prompt of the rows finds in `prefix_caching` with this many blocks.

    A prompt that the policy refuses for good finds none.
    """
    pool = PoolSpec(num_blocks * block_size, int(rows.prompt_len.max(initial=1)))
    policy = PrefixCaching(pool, block_size, watermark=0.0, eviction=order)
    policy.foresee_prompts(rows.prompts())
    sessions = [None] * len(rows) if rows.sessions is None else rows.sessions.tolist()
    hits = []
    for number, ((ids, tokens_per_id, prompt_len), session) in enumerate(
        zip(rows.prompts(), sessions, strict=True)
    ):
        request = Incoming(
            number, 0, prompt_len, prompt_ids=ids, tokens_per_id=tokens_per_id, session=session
        )
        hits.append(_serve(policy, Sequence(number, request)) // block_size)
    return hits


def _serve(policy: PrefixCaching, seq: Sequence) -> int:
    """A prompt comes and goes; returns the tokens that it found."""
    answers = policy.admit([seq], seq.prompt_len)
    if isinstance(answers, Refusal):
        return 0
    (grant,) = answers
    seq.set_counts(num_slots=seq.prompt_len, num_stored=seq.prompt_len)
    policy.publish(seq, seq.prompt_len)
    policy.release(seq)
    return grant.num_cached
