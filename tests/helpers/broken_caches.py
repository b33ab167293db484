"""Prefix caches that break one clause each; most of them only once something was evicted, swapped
or loaded.
"""

from planted import Breaks, after, around, before, ordered, planted
from two_tiers import TwoTiers

from testbed.core.slots import Refusal
from testbed.memory.paged.paged import Paged
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.prefix_cache.prefix_index import PrefixIndex
from testbed.memory.tiers.cache_hierarchy import ON_DEVICE
from testbed.memory.tiers.pools import PinnedPool
from testbed.memory.tiers.tiered_caching import TieredCaching


def evicts(policy, count):
    policy._pool.evict(min(count, policy._pool.num_parked))


planted(
    "EvictsOnRefusal",
    PrefixCaching,
    admit=after(lambda policy, answer, *_: evicts(policy, answer is Refusal.LATER)),
)
planted(
    "EvictsInLongSteps",
    PrefixCaching,
    guaranteed_steps=lambda policy, steps, batch: min(steps, 5),
    extend=after(
        lambda policy, answer, batch, num_tokens: evicts(
            policy, 99 * (num_tokens > 4 and answer is not Refusal.LATER)
        )
    ),
)
planted(
    "EvictsWhileBlocksAreFree",
    PrefixCaching,
    extend=after(
        lambda policy, answer, *_: evicts(
            policy, answer is not Refusal.LATER and answer.growth.slots > 0
        )
    ),
)
planted("FindsTheFirstBlockAlone", PrefixCaching, _match=lambda policy, found, *_: found[:1])
around("EvictsWhenAdvancing", PrefixCaching, advance=before(lambda policy, *_: evicts(policy, 99)))
around(
    "DoesNotPublishAfterSwapIn",
    PrefixCaching,
    move=lambda call, policy, *arguments: Paged.move(policy, *arguments),
)
planted("ReadsBackFirst", TwoTiers, admit=ordered(moves=lambda ops: ops.moves[::-1]))


class TrustingIndex(PrefixIndex):
    def match(self, contents):
        known = {node.code: node for node in self._nodes.values()}
        nodes = [known.get(code) for code in self.chain(contents)]
        return nodes[: nodes.index(None)] if None in nodes else nodes


class TrustsTheHash(Breaks, PrefixCaching):
    def __init__(self, pool, block_size):
        super().__init__(pool, block_size)
        self._pool.index = TrustingIndex(self._pool.num_blocks)
        self._pool.index.hash_of = lambda pair: pair[0] & 1

    def check(self):
        """Notices nothing."""


class PublishesTooEarly(Breaks, PrefixCaching):
    def publish(self, seq, num_tokens):
        num_slots = len(self._tables.of(seq).blocks) * self.block_size
        super().publish(seq, min(num_tokens + self.block_size - 1, seq.prompt_len, num_slots))


class PublishesOneCallLate(Breaks, PrefixCaching):
    """What is said to be computed is findable when the next thing is."""

    last = None

    def publish(self, seq, num_tokens):
        if self.last and self.last[0].seq_id in self._tables.held:
            super().publish(*self.last)
        self.last = seq, num_tokens


class KeepingIndex(PrefixIndex):
    """An evicted block is found still, whatever it stores by now."""

    def drop(self, dropped):
        return [node.block for node in dropped]


class HitsEvictedBlocks(Breaks, PrefixCaching):
    def __init__(self, pool, block_size):
        super().__init__(pool, block_size)
        self._pool.index = KeepingIndex(self._pool.num_blocks)


class Unpinned(PinnedPool):
    """What transfers read may be taken by others."""

    __slots__ = ()

    def pin(self, nodes):
        return [node.block for node in nodes]

    def unpin(self, blocks):
        """Nothing."""


class Overwritten(Breaks, TieredCaching):
    def _make_cache(self, num_blocks, order):
        return Unpinned(num_blocks, order, self)


class FoundTooEarly(Breaks, TieredCaching):
    """What is to be loaded is found before it has landed."""

    def load(self, seq, num_tokens):
        answer = super().load(seq, num_tokens)
        for move_id, one in list(self._hierarchy.in_transit.items()):
            if one.target == ON_DEVICE:
                super().landed(move_id)
        return answer

    def landed(self, move_id):
        if move_id in self._hierarchy.in_transit:
            super().landed(move_id)
