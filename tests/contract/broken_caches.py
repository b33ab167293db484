"""Prefix caches that break one clause each; most of them only once something was evicted or swapped."""

from testbed.core.slots import HOST, Grant, Refusal
from testbed.memory.paged.paged import Paged
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.prefix_cache.prefix_index import PrefixIndex


class TrustingIndex(PrefixIndex):
    def match(self, contents):
        nodes = [self._nodes.get(code) for code in self.chain(contents)]
        return nodes[: nodes.index(None)] if None in nodes else nodes


class TrustsTheHash(PrefixCaching):
    def __init__(self, pool, block_size):
        super().__init__(pool, block_size, hash_of=lambda pair: pair[0] & 1)
        self._pool.index = TrustingIndex(self._pool.num_blocks, lambda pair: pair[0] & 1)

    def check(self):
        pass


class PublishesTooEarly(PrefixCaching):
    def computed(self, seq, num_tokens):
        super().computed(
            seq,
            min(num_tokens + self.block_size - 1, seq.prompt_len, len(self._tables.of(seq).blocks) * self.block_size),
        )


class PublishesTooLate(PrefixCaching):
    """What is said to be computed is findable when the next thing is."""

    last = None

    def computed(self, seq, num_tokens):
        if self.last and self.last[0].seq_id in self._tables.held:
            super().computed(*self.last)
        self.last = seq, num_tokens


class NeverPublishes(PrefixCaching):
    def computed(self, seq, num_tokens):
        pass


class ForgetsSwapIns(PrefixCaching):
    """What comes back from the host is not published again."""

    def move(self, seqs, tier):
        return Paged.move(self, seqs, tier)


class LosesBlocksOfSwapIns(PrefixCaching):
    """A cached block is lost by every swap-in."""

    def move(self, seqs, tier):
        answer = super().move(seqs, tier)
        if tier != HOST and isinstance(answer, Grant) and self._pool.num_parked:
            self._pool.evict(1)
            self._pool.free.pop()
        return answer

    def check(self):
        pass


class RemembersTheEvicted(PrefixCaching):
    """An evicted block is found still, whatever it stores by now."""

    class Index(PrefixIndex):
        def drop(self, dropped):
            return [node.block for node in dropped]

    def __init__(self, pool, block_size):
        super().__init__(pool, block_size)
        self._pool.index = self.Index(self._pool.num_blocks)

    def check(self):
        pass


class EvictsWhatIsHeld(PrefixCaching):
    def _make_room_beside(self, nodes, total):
        parked = [node for node in nodes if node.parked]
        super()._make_room_beside(nodes, total)
        self._pool.free += [node.block for node in parked]

    def check(self):
        pass


class EvictsForNothing(PrefixCaching):
    """Makes room although it refuses."""

    def admit(self, seqs, num_tokens):
        answer = super().admit(seqs, num_tokens)
        if answer is Refusal.LATER:
            self._pool.evict(min(1, self._pool.num_parked))
        return answer


class EvictsTooSoon(PrefixCaching):
    """Decoding evicts while blocks are free."""

    def extend(self, batch, num_tokens):
        free = len(self._pool.free)
        answer = super().extend(batch, num_tokens)
        if len(self._pool.free) < free and self._pool.num_parked:
            self._pool.evict(1)
        return answer


class FindsTheLastToken(PrefixCaching):
    """Shares the block of the last prompt token, which is always computed again."""

    def admit(self, seqs, num_tokens):
        for seq in seqs:
            seq.prompt_len += 1
        answers = super().admit(seqs, num_tokens)
        for seq in seqs:
            seq.prompt_len -= 1
        return answers


class PromisesToNewcomersOnly(PrefixCaching):
    """The members of a group that comes back are said to have their whole prompt."""

    def admit(self, seqs, num_tokens):
        answers = super().admit(seqs, num_tokens)
        if isinstance(answers, list) and len(seqs) > 1:
            return [answers[0], *[Grant(seqs[0].prompt_len)] * (len(seqs) - 1)]
        return answers
