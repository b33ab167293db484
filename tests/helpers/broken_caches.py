"""Prefix caches that break one clause each; most of them only once something was evicted or swapped."""

from planted import Breaks, granted, planted
from two_tiers import TwoTiers

from testbed.core.slots import Refusal
from testbed.memory.paged.paged import Paged
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.prefix_cache.prefix_index import PrefixIndex
from testbed.memory.tiers.cache_hierarchy import ON_DEVICE
from testbed.memory.tiers.pools import PinnedPool
from testbed.memory.tiers.tiered_caching import TieredCaching

planted("ReadsBackFirst", TwoTiers, admit=granted(lambda one: one._replace(
    ops=one.ops._replace(moves=one.ops.moves[::-1])
)))  # fmt: skip


class TrustingIndex(PrefixIndex):
    def match(self, contents):
        known = {node.code: node for node in self._nodes.values()}
        nodes = [known.get(code) for code in self.chain(contents)]
        return nodes[: nodes.index(None)] if None in nodes else nodes


class TrustsTheHash(Breaks, PrefixCaching):
    def __init__(self, pool, block_size):
        super().__init__(pool, block_size, hash_of=lambda pair: pair[0] & 1)
        self._pool.index = TrustingIndex(self._pool.num_blocks, lambda pair: pair[0] & 1)


class PublishesTooEarly(Breaks, PrefixCaching):
    def publish(self, seq, num_tokens):
        super().publish(
            seq,
            min(num_tokens + self.block_size - 1, seq.prompt_len, len(self._tables.of(seq).blocks) * self.block_size),
        )


class PublishesOneCallLate(Breaks, PrefixCaching):
    """What is said to be computed is findable when the next thing is."""

    last = None

    def publish(self, seq, num_tokens):
        if self.last and self.last[0].seq_id in self._tables.held:
            super().publish(*self.last)
        self.last = seq, num_tokens


class DoesNotPublishAfterSwapIn(Breaks, PrefixCaching):
    """What comes back from the host is not published again."""

    def move(self, seqs, tier):
        return Paged.move(self, seqs, tier)


class HitsEvictedBlocks(Breaks, PrefixCaching):
    """An evicted block is found still, whatever it stores by now."""

    class Index(PrefixIndex):
        def drop(self, dropped):
            return [node.block for node in dropped]

    def __init__(self, pool, block_size):
        super().__init__(pool, block_size)
        self._pool.index = self.Index(self._pool.num_blocks)


class EvictsOnRefusal(Breaks, PrefixCaching):
    """Evicts although it refuses."""

    def admit(self, seqs, num_tokens):
        answer = super().admit(seqs, num_tokens)
        if answer is Refusal.LATER:
            self._pool.evict(min(1, self._pool.num_parked))
        return answer


class EvictsWhileBlocksAreFree(Breaks, PrefixCaching):
    """Decoding evicts while blocks are free."""

    def extend(self, batch, num_tokens):
        free = len(self._pool.free)
        answer = super().extend(batch, num_tokens)
        if len(self._pool.free) < free and self._pool.num_parked:
            self._pool.evict(1)
        return answer


class EvictsInLongSteps(Breaks, PrefixCaching):
    """Decoding evicts whatever is cached."""

    def extend(self, batch, num_tokens):
        answer = super().extend(batch, num_tokens)
        self._pool.evict(self._pool.num_parked if num_tokens > 4 and not isinstance(answer, Refusal) else 0)
        return answer


class EvictsWhenAdvancing(Breaks, PrefixCaching):
    """Decoding evicts whatever is cached."""

    def advance(self, batch, num_steps):
        self._pool.evict(self._pool.num_parked)
        return self.extend(batch, num_steps)


class Unpinned(PinnedPool):
    """What transfers read may be taken by others."""

    __slots__ = ()

    def pin(self, nodes):
        return [node.block for node in nodes]

    def unpin(self, blocks):
        """Nothing."""


class Overwritten(Breaks, TieredCaching):
    def _make_cache(self, num_blocks, order, hash_of):
        return Unpinned(num_blocks, order, hash_of, self)


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
