"""Prefix caches that break one clause each; most of them only once something was evicted or swapped."""

from planted import Breaks

from testbed.core.slots import Refusal
from testbed.memory.paged.paged import Paged
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.prefix_cache.prefix_index import PrefixIndex


class TrustingIndex(PrefixIndex):
    def match(self, contents):
        known = {node.code: node for node in self._nodes.values()}
        nodes = [known.get(code) for code in self.chain(contents)]
        return nodes[: nodes.index(None)] if None in nodes else nodes


class TrustsTheHash(Breaks, PrefixCaching, clauses={5, 8}, silent=True):
    def __init__(self, pool, block_size):
        super().__init__(pool, block_size, hash_of=lambda pair: pair[0] & 1)
        self._pool.index = TrustingIndex(self._pool.num_blocks, lambda pair: pair[0] & 1)


class PublishesTooEarly(Breaks, PrefixCaching, clauses={4, 8}):
    def publish(self, seq, num_tokens):
        super().publish(
            seq,
            min(num_tokens + self.block_size - 1, seq.prompt_len, len(self._tables.of(seq).blocks) * self.block_size),
        )


class PublishesOneCallLate(Breaks, PrefixCaching, clauses={8}):
    """What is said to be computed is findable when the next thing is."""

    last = None

    def publish(self, seq, num_tokens):
        if self.last and self.last[0].seq_id in self._tables.held:
            super().publish(*self.last)
        self.last = seq, num_tokens


class DoesNotPublishAfterSwapIn(Breaks, PrefixCaching, clauses={8}):
    """What comes back from the host is not published again."""

    def move(self, seqs, tier):
        return Paged.move(self, seqs, tier)


class HitsEvictedBlocks(Breaks, PrefixCaching, clauses={4, 5, 8}, silent=True):
    """An evicted block is found still, whatever it stores by now."""

    class Index(PrefixIndex):
        def drop(self, dropped):
            return [node.block for node in dropped]

    def __init__(self, pool, block_size):
        super().__init__(pool, block_size)
        self._pool.index = self.Index(self._pool.num_blocks)


class EvictsOnRefusal(Breaks, PrefixCaching, clauses={1}):
    """Evicts although it refuses."""

    def admit(self, seqs, num_tokens):
        answer = super().admit(seqs, num_tokens)
        if answer is Refusal.LATER:
            self._pool.evict(min(1, self._pool.num_parked))
        return answer


class EvictsWhileBlocksAreFree(Breaks, PrefixCaching, clauses={6, 7}):
    """Decoding evicts while blocks are free."""

    def extend(self, batch, num_tokens):
        free = len(self._pool.free)
        answer = super().extend(batch, num_tokens)
        if len(self._pool.free) < free and self._pool.num_parked:
            self._pool.evict(1)
        return answer
