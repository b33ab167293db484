"""Policies that break one clause of the contract each; the search must name it.

Each is what a plug-in author might write: a built-in policy with one mistake.
"""

from dataclasses import replace
from random import Random

from broken_parts import BrokenParts
from two_tiers import TwoTiers
from window import Window

from testbed.core.slots import (
    DEVICE,
    GRANTED,
    HOST,
    NO_GROWTH,
    Copy,
    Extent,
    Grant,
    Granular,
    Growth,
    Keep,
    Ops,
    Refusal,
)
from testbed.memory.contiguous.reservations import ContiguousMax
from testbed.memory.groups.grouped import Grouped
from testbed.memory.groups.grouped_caching import GroupedCaching
from testbed.memory.groups.page_cache import NoCache
from testbed.memory.groups.page_rules import OnePageSize
from testbed.memory.paged.paged import BlockMemory, Paged
from testbed.memory.policy import host
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.prefix_cache.prefix_index import PrefixIndex
from testbed.memory.tiers.cache_hierarchy import ON_DEVICE
from testbed.memory.tiers.pinned_pool import PinnedPool
from testbed.memory.tiers.tiered_caching import TieredCaching

BROKEN = BrokenParts()
breaks = BROKEN.breaks
RANDOM = Random(0)


def first_grant(answers, **changes):
    """The answers of admit(), the first grant of which is changed."""
    if isinstance(answers, Refusal):
        return answers
    return [answers[0]._replace(**changes), *answers[1:]]


def grant(answer, **changes):
    """The answer of extend() or move(), if it is a grant, changed."""
    return answer if isinstance(answer, Refusal) else answer._replace(**changes)


def leak(policy, least=1):
    """A free block is lost, if there are so many."""
    if len(policy._pool.free) >= least:
        policy._pool.free.pop()


def evict(policy, count):
    policy._pool.evict(min(count, policy._pool.num_unreferenced))


# 1 Refusals are atomic.


@breaks(1)
class LeaksOnRefusal(Paged):
    def admit(self, seqs, num_tokens):
        answers = super().admit(seqs, num_tokens)
        if answers is Refusal.LATER:
            leak(self)
        return answers


@breaks(1)
class EvictsOnRefusal(PrefixCaching):
    def admit(self, seqs, num_tokens, hit=None):
        answers = super().admit(seqs, num_tokens, hit)
        if answers is Refusal.LATER:
            evict(self, 1)
        return answers


# 2 Refusals are stable.


@breaks(2)
class RefusalDependsOnCallCount(Paged):
    requested = 0

    def admit(self, seqs, num_tokens):
        self.requested += 1
        if self.requested % 3 == 1 and self._tables.held:
            return Refusal.LATER
        return super().admit(seqs, num_tokens)


@breaks(2)
class RefusesTheSecond(Paged):
    def admit(self, seqs, num_tokens):
        return Refusal.LATER if len(self._tables.held) == 1 else super().admit(seqs, num_tokens)


# 3 NEVER means that it would not fit an empty pool.


@breaks(3)
class RefusesForeverWhenFull(Paged):
    def admit(self, seqs, num_tokens):
        answers = super().admit(seqs, num_tokens)
        return Refusal.NEVER if answers is Refusal.LATER else answers


@breaks(3)
class DefersWhatCannotFit(Paged):
    def admit(self, seqs, num_tokens):
        answers = super().admit(seqs, num_tokens)
        return Refusal.LATER if answers is Refusal.NEVER else answers


@breaks(3)
class UnderstatesMaxSeqLen(Paged):
    def max_seq_len(self, prompt_len, num_seqs):
        return super().max_seq_len(prompt_len, num_seqs) - 1


@breaks(3)
class OverstatesMaxSeqLen(Paged):
    def max_seq_len(self, prompt_len, num_seqs):
        return super().max_seq_len(prompt_len, num_seqs) + 1


@breaks(3)
class AnswersMaxSeqLenInHalves(Paged):
    def max_seq_len(self, prompt_len, num_seqs):
        return super().max_seq_len(prompt_len, num_seqs) / 2


@breaks(3)
class NeverLoads(TieredCaching):
    def load(self, seq, num_tokens, hit):
        return Refusal.NEVER


@breaks(3)
class LeaksHostBlocksOnSwapIn(Paged):
    def move(self, seqs, tier):
        before = list(self._host.pool.free)
        answer = super().move(seqs, tier)
        if tier != HOST and isinstance(answer, Grant):
            self._host.pool.free = before
        return answer


# 4 Conservation.


@breaks(4)
class CountsAFreeSlotTwice(Paged):
    def usage(self):
        used = super().usage()
        return used._replace(free=used.free + 1)


@breaks(4)
class CountsALiveSlotMore(Paged):
    def usage(self):
        used = super().usage()
        return used._replace(live=min(used.live + 1, used.held))


@breaks(4)
class CountsMoreLiveThanHeld(Paged):
    def usage(self):
        used = super().usage()
        return used._replace(live=used.held + 1)


@breaks(4)
class CountsAHeldSlotLess(Paged):
    def usage(self):
        used = super().usage()
        return used._replace(held=max(used.held - 1, used.live))


@breaks(4)
class CountsASavedSlotMore(Paged):
    def usage(self):
        used = super().usage()
        return used._replace(saved=used.saved + 1)


@breaks(4)
class CountsALargerRange(Paged):
    def usage(self):
        used = super().usage()
        return used._replace(largest_free=used.free + 1)


@breaks(4)
class TablesBeyondThePool(Paged):
    def table(self, seq):
        return [Extent(start + 88, length) for start, length in super().table(seq)]


@breaks(4)
class ListsNothingCached(PrefixCaching):
    def non_sequence_slots(self):
        return super().non_sequence_slots()._replace(cached=())


@breaks(4)
class ListsASlotTwice(PrefixCaching):
    def non_sequence_slots(self):
        others = super().non_sequence_slots()
        return others._replace(cached=others.cached[:1] * len(others.cached))


@breaks(4)
class LeaksBlockOnRelease(Paged):
    def release(self, seq, keep=Keep.CACHED):
        super().release(seq, keep)
        leak(self, least=4)


@breaks(4)
class LeaksAReferenceToItsPrefix(Paged):
    def release(self, seq, keep=Keep.CACHED):
        super().release(seq, keep)
        self._pool.share(self._tables.prefixes.get(seq.registered_prefix, ())[:1])


@breaks(4)
class ForgetsALease(Paged):
    def end_lease(self, lease):
        """Nothing."""


@breaks(4)
class GrantsWithoutAllocating(ContiguousMax):
    def extend(self, batch, num_tokens=1):
        return GRANTED


@breaks(4)
class TakesTwiceThePool(Paged):
    def __init__(self, pool, block_size):
        super().__init__(replace(pool, num_slots=2 * pool.num_slots), block_size)


@breaks(4)
class TakesTwiceTheHost(Paged):
    def __init__(self, pool, block_size):
        super().__init__(replace(pool, tiers=host(2 * pool.slots_of(HOST))), block_size)


@breaks(4)
class TruncatesABlockLess(Paged):
    def truncate(self, seq, num_tokens):
        return super().truncate(seq, max(num_tokens - self.block_size, 0))


@breaks(4)
class CopiesBeyondThePool(Paged):
    def admit(self, seqs, num_tokens):
        ops = Ops(copies=(Copy(0, 89, 2),))
        return first_grant(super().admit(seqs, num_tokens), ops=ops)


@breaks(4)
class MovesToNowhere(Paged):
    def move(self, seqs, tier):
        answer = super().move(seqs, tier)
        if tier == DEVICE or isinstance(answer, Refusal):
            return answer
        (move,) = answer.ops.moves
        return grant(answer, ops=Ops(moves=(move._replace(target="disk"),)))


@breaks(4)
class HitsEvictedBlocks(PrefixCaching):
    """An evicted block is found still, whatever it stores by now."""

    def __init__(self, pool, block_size):
        super().__init__(pool, block_size)
        self._pool.index = KeepingIndex(self._pool.num_blocks)


class KeepingIndex(PrefixIndex):
    def drop(self, dropped):
        return [node.block for node in dropped]


@breaks(4)
class PublishesTooEarly(PrefixCaching):
    def publish(self, seq, num_tokens):
        num_slots = len(self._tables.of(seq).blocks) * self.block_size
        super().publish(seq, min(num_tokens + self.block_size - 1, seq.prompt_len, num_slots))


# 5 Every sequence reads back its own tokens.


@breaks(5)
class OmitsCopyOnWrite(Paged):
    def extend(self, batch, num_tokens=1):
        return grant(super().extend(batch, num_tokens), ops=Ops())


@breaks(5)
class WritesWhereOthersRead(Paged):
    def extend(self, batch, num_tokens=1):
        for index in batch.indexes.values():
            index.tails.clear()
        return super().extend(batch, num_tokens)


@breaks(5)
class OmitsSwapInCopies(Paged):
    def move(self, seqs, tier):
        answer = super().move(seqs, tier)
        return answer if tier == HOST else grant(answer, ops=Ops())


@breaks(5)
class ReversesItsWindow(Window):
    def table(self, seq):
        return super().table(seq)[::-1]


@breaks(5)
class SharesPartialBlock(Paged):
    def _allocate_tables(self, seqs, num_tokens, cached):
        blocks = super()._allocate_tables(seqs[:1], num_tokens, cached)
        for seq in seqs[1:]:
            self._tables.fork(seqs[0], seq, num_tokens)
        return blocks


@breaks(5)
class AllocatesBlockTwice(Paged):
    def extend(self, batch, num_tokens=1):
        before = list(self._pool.free)
        answer = super().extend(batch, num_tokens)
        if len(self._pool.free) < len(before):
            self._pool.free[-1:] = [before[-1]]
        return answer


@breaks(5)
class AllocatesHostBlockTwice(Paged):
    """The last block of the host is given to two."""

    def move(self, seqs, tier):
        answer = super().move(seqs, tier)
        free = self._host.pool.free
        if tier == HOST and isinstance(answer, Grant) and not free:
            free.append(answer.ops.moves[0].copies[-1].dst // self.block_size)
        return answer


@breaks(5)
class GivesBackTooEarly(Grouped):
    def __init__(self, pool, block_size):
        super().__init__(pool, block_size)
        self.pages = Hasty(pool.num_slots * pool.num_layers, pool.groups, block_size)
        self.cache = NoCache(self.pages)


class Hasty(OnePageSize):
    def first_read(self, column, token):
        return super().first_read(column, token + self.block_size)


@breaks(5)
class FindsStatesTooEarly(GroupedCaching):
    def publish(self, seq, num_tokens):
        super().publish(seq, num_tokens)
        self.cache.unready.clear()


# 6 Guaranteed steps are granted.


@breaks(6)
class OverstatesGuaranteedSteps(Paged):
    def guaranteed_steps(self, batch):
        return 1 << 60


@breaks(6)
class GuaranteesLessThanNothing(Paged):
    def guaranteed_steps(self, batch):
        return -1


@breaks(6)
class FragmentsAsItGrows(Paged):
    def usage(self):
        used = super().usage()
        return used._replace(largest_free=used.free // 2)


@breaks(6)
class PromisesACopy(Paged):
    def guaranteed_steps(self, batch):
        if not len(batch):
            return 0
        index = batch.index(self, self._index)
        return index.steps_within(max(self._pool.available() - len(index.tails), 0))


@breaks(6)
class EvictsInLongSteps(PrefixCaching):
    def guaranteed_steps(self, batch):
        return min(super().guaranteed_steps(batch), 5)

    def extend(self, batch, num_tokens=1):
        answer = super().extend(batch, num_tokens)
        if num_tokens > 4 and isinstance(answer, Grant):
            evict(self, 99)
        return answer


# 7 Several steps at once are the same steps one by one.


@breaks(7)
class OmitsGrowth(Paged):
    def extend(self, batch, num_tokens=1):
        return grant(super().extend(batch, num_tokens), growth=NO_GROWTH)


@breaks(7)
class OmitsEvictions(PrefixCaching):
    def extend(self, batch, num_tokens=1):
        return grant(super().extend(batch, num_tokens), evicted=NO_GROWTH)


@breaks(7)
class ForgetsThatCopiesGrow(Paged):
    def extend(self, batch, num_tokens=1):
        answer = super().extend(batch, num_tokens)
        if isinstance(answer, Refusal) or not answer.ops.copies:
            return answer
        copied = sum(copy.length for copy in answer.ops.copies)
        return grant(answer, growth=answer.growth._replace(slots=answer.growth.slots - copied))


@breaks(7)
class CopiesTwiceInLongSteps(Paged):
    def extend(self, batch, num_tokens=1):
        answer = super().extend(batch, num_tokens)
        if num_tokens == 1 or isinstance(answer, Refusal):
            return answer
        return grant(answer, ops=Ops(answer.ops.copies * 2))


@breaks(7)
class RefusesSingleSteps(Paged):
    def extend(self, batch, num_tokens=1):
        if num_tokens == 1 and len(batch) == 2:
            return Refusal.LATER
        return super().extend(batch, num_tokens)


@breaks(7)
class RefusesLongSteps(Paged):
    def guaranteed_steps(self, batch):
        return 0

    def extend(self, batch, num_tokens=1):
        if num_tokens > 1 and len(self._tables.held) > 2:
            return Refusal.LATER
        return super().extend(batch, num_tokens)


@breaks(7)
class EvictsWhileBlocksAreFree(PrefixCaching):
    def extend(self, batch, num_tokens=1):
        answer = super().extend(batch, num_tokens)
        if isinstance(answer, Grant) and answer.growth.slots > 0:
            evict(self, 1)
        return answer


@breaks(7)
class AdvancesTooFar(GroupedCaching):
    def advance(self, batch, num_steps):
        return super().advance(batch, num_steps + 8)


# 8 What is published is found, and nothing else.


@breaks(8)
class FindsMoreThanThereIs(Paged):
    def admit(self, seqs, num_tokens):
        return first_grant(super().admit(seqs, num_tokens), num_cached=1000)


@breaks(8)
class OmitsPrefixCopy(Paged):
    """A registered prefix ends within a block, which is not copied."""

    def admit(self, seqs, num_tokens):
        return first_grant(super().admit(seqs, num_tokens), ops=Ops())


@breaks(8)
class ListsNothingPinned(Paged):
    def non_sequence_slots(self):
        return super().non_sequence_slots()._replace(pinned=())


@breaks(8)
class AssumesPromptStoredAfterPreemption(Paged):
    def admit(self, seqs, num_tokens):
        answers = super().admit(seqs, num_tokens)
        if isinstance(answers, Refusal) or not seqs[0].num_preemptions:
            return answers
        return [Grant(min(num_tokens, seqs[0].prompt_len) - 1)] * len(seqs)


@breaks(8)
class FindsTheFirstBlockAlone(PrefixCaching):
    def lookup(self, seq):
        hit = super().lookup(seq)
        hit.nodes = hit.nodes[:1]
        return hit


@breaks(8)
class PublishesOneCallLate(PrefixCaching):
    """Computed tokens can be found only after the next call of `computed`."""

    last = None

    def publish(self, seq, num_tokens):
        if self.last and self.last[0].seq_id in self._tables.held:
            super().publish(*self.last)
        self.last = seq, num_tokens


@breaks(8)
class DoesNotPublishAfterSwapIn(PrefixCaching):
    def move(self, seqs, tier):
        return BlockMemory.move(self, seqs, tier)


@breaks(8)
class TrustsTheHash(PrefixCaching):
    def __init__(self, pool, block_size):
        super().__init__(pool, block_size)
        self._pool.index = TrustingIndex(self._pool.num_blocks)
        self._pool.index.hash_of = lambda pair: pair[0] & 1

    def check(self):
        """Notices nothing."""


class TrustingIndex(PrefixIndex):
    def match(self, contents):
        known = {node.code: node for node in self._nodes.values()}
        nodes = [known.get(code) for code in self.chain(contents)]
        return nodes[: nodes.index(None)] if None in nodes else nodes


@breaks(8)
class ReadsBackFirst(TwoTiers):
    """A block is read from the host before what lay in its place was written there."""

    def admit(self, seqs, num_tokens, hit=None):
        answers = super().admit(seqs, num_tokens, hit)
        if isinstance(answers, Refusal):
            return answers
        ops = answers[0].ops
        return first_grant(answers, ops=ops._replace(moves=ops.moves[::-1]))


# 9 The same calls give the same answers.


@breaks(9)
class AllocatesAtRandom(Paged):
    def admit(self, seqs, num_tokens):
        RANDOM.shuffle(self._pool.free)
        return super().admit(seqs, num_tokens)


# 10 Answers have the types of the API.


@breaks(10)
class ReturnsNone(Paged):
    def extend(self, batch, num_tokens=1):
        return None


@breaks(10)
class AnswersWithOneGrant(Paged):
    def admit(self, seqs, num_tokens):
        answers = super().admit(seqs, num_tokens)
        return answers if isinstance(answers, Refusal) else answers[0]


@breaks(10)
class ListsARefusal(Paged):
    def admit(self, seqs, num_tokens):
        return [Refusal.LATER] * len(seqs)


@breaks(10)
class FindsTrue(Paged):
    def admit(self, seqs, num_tokens):
        return first_grant(super().admit(seqs, num_tokens), num_cached=True)


@breaks(10)
class GrowsByHalves(Paged):
    def extend(self, batch, num_tokens=1):
        return grant(super().extend(batch, num_tokens), growth=Growth(0.5))


@breaks(10)
class CopiesHalves(Paged):
    def admit(self, seqs, num_tokens):
        ops = Ops(copies=(Copy(0, 0.5, 1),))
        return first_grant(super().admit(seqs, num_tokens), ops=ops)


@breaks(10)
class OrdersNone(Paged):
    def admit(self, seqs, num_tokens):
        return first_grant(super().admit(seqs, num_tokens), ops=None)


@breaks(10)
class MovesWithinATier(Paged):
    def move(self, seqs, tier):
        answer = super().move(seqs, tier)
        if isinstance(answer, Refusal):
            return answer
        (move,) = answer.ops.moves
        return grant(answer, ops=Ops(moves=(move._replace(target=move.source),)))


@breaks(10)
class CountsHalves(Paged):
    def usage(self):
        used = super().usage()
        return used._replace(live=used.live / 2)


@breaks(10)
class TablesOfTruthValues(Paged):
    def table(self, seq):
        return [Extent(False, length) for _, length in super().table(seq)]


@breaks(10)
class SaysNothingOfItsFootprint(Paged):
    def footprint(self, seq):
        return None


@breaks(10)
class StoresAtOnce(TieredCaching):
    def background(self):
        return Ops(moves=tuple(transfer.move for transfer in super().background().background))


@breaks(10)
class SeatsHalf(Paged):
    """Of a group that comes back only the first half has slots."""

    def admit(self, seqs, num_tokens):
        half = len(seqs) // 2
        answers = super().admit(seqs[: len(seqs) - half], num_tokens)
        return answers if isinstance(answers, Refusal) else answers + [GRANTED] * half


@breaks(10)
class GivesLeasedSlotsBack(Paged):
    def release(self, seq, keep=Keep.CACHED):
        super().release(seq)


@breaks(10)
class FailsTheCheck(Paged):
    def check(self):
        raise AssertionError("something is wrong")


@breaks(10)
class Raises(Paged):
    def release(self, seq, keep=Keep.CACHED):
        [].pop()


@breaks(10)
class ReadsLengthsItDoesNotHave(ContiguousMax):
    def admit(self, seqs, num_tokens):
        return super().admit(seqs, self.lengths[seqs[0].request_id])


# 11 A footprint is the size of a table.


@breaks(11)
class MisstatesItsFootprint(Paged):
    def footprint(self, seq):
        return Granular(2 * self.block_size)


@breaks(11)
class ReservesLessThanNothing(Paged):
    """Admits whatever the pool lacks: a flood is never refused."""

    def reserve(self, tables):
        return -5


@breaks(11)
class AllocatesASlotLess(Paged):
    def __init__(self, pool, block_size):
        super().__init__(pool, 1)

    def admit(self, seqs, num_tokens):
        return super().admit(seqs, max(num_tokens - 1, 1))


# 12 What a transfer reads or writes is pinned.


def redirected(ops, **changes):
    """Transfers in the background, whose copies are changed."""

    def changed(transfer):
        copies = tuple(copy._replace(**changes) for copy in transfer.move.copies)
        return transfer._replace(move=transfer.move._replace(copies=copies))

    return Ops(background=tuple(map(changed, ops.background)))


@breaks(12)
class StoresFromSlot0(TieredCaching):
    def background(self):
        return redirected(super().background(), src=0)


@breaks(12)
class StoresToSlot0(TieredCaching):
    def background(self):
        return redirected(super().background(), dst=0)


@breaks(12)
class Overwritten(TieredCaching):
    """Slots that transfers read may be taken by others."""

    def _make_cache(self, num_blocks, order):
        return Unpinned(num_blocks, order, self._evicting)


class Unpinned(PinnedPool):
    __slots__ = ()

    def pin(self, nodes):
        return [node.block for node in nodes]

    def unpin(self, blocks):
        """Nothing."""


@breaks(12)
class FoundTooEarly(TieredCaching):
    """Loads are found before they have landed."""

    def load(self, seq, num_tokens, hit):
        answer = super().load(seq, num_tokens, hit)
        for move_id, transfer in list(self._hierarchy.in_transit.items()):
            if transfer.target == ON_DEVICE:
                super().landed(move_id)
        return answer

    def landed(self, move_id):
        if move_id in self._hierarchy.in_transit:
            super().landed(move_id)


@breaks(8)
class CachesRejectedDrafts(OutputCaching):
    """Released tokens may be found up to the last slot, even if its drafts were rejected."""

    def _give_back(self, seq, keep):
        num_stored, seq.num_stored = seq.num_stored, seq.num_slots
        super()._give_back(seq, keep)
        seq.num_stored = num_stored
