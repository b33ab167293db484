"""Memory policies with changed answers, and those that break a clause each: what is found is in
golden/broken.csv.
"""

from dataclasses import replace
from functools import partial
from random import Random

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
    Ops,
    Refusal,
)
from testbed.memory.contiguous.contiguous import ContiguousMax
from testbed.memory.groups.grouped import Grouped
from testbed.memory.groups.grouped_caching import GroupedCaching
from testbed.memory.groups.page_rules import OnePageSize
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import MemoryPolicy, host
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.tiers.tiered_caching import TieredCaching

BROKEN = {}
RANDOM = Random(0)


class Breaks:
    """A base of policies that break a clause."""

    def __init_subclass__(cls):
        BROKEN[cls.__name__] = cls


def changed(base, **changes):
    """Methods that answer change(policy, the base's answer, *arguments of the call)."""

    def method(call, change):
        return lambda self, *arguments: change(
            self, getattr(base, call)(self, *arguments), *arguments
        )

    return {call: method(call, change) for call, change in changes.items()}


def altered(name, base=Paged, **changes):
    """A policy of this name, some of whose answers are changed."""
    return type(name, (base,), changed(base, **changes))


def planted(name, base=Paged, **changes):
    """One that breaks a clause by what is changed."""
    type(name, (Breaks, base), changed(base, **changes))


def around(name, base=Paged, **methods):
    """One that breaks a clause, some of whose methods are method(the base's, policy,
    *arguments).
    """

    def calling(call, method):
        return lambda self, *arguments, **options: method(
            partial(call, self), self, *arguments, **options
        )

    type(
        name,
        (Breaks, base),
        {call: calling(getattr(base, call), method) for call, method in methods.items()},
    )


def after(act):
    """The answer is the same, but something happens behind it."""
    return lambda policy, answer, *arguments: (act(policy, answer, *arguments), answer)[1]


def before(act):
    """The same, but something happens ahead of the call."""
    return lambda call, policy, *arguments: (act(policy, *arguments), call(*arguments))[1]


def fail(*_):
    raise AssertionError("something is wrong")


def instead(wrong, other):
    return lambda policy, answer, *arguments: other if answer is wrong else answer


def always(answer):
    return lambda *_: answer


def granted(change):
    """Changes a Grant, or the first of several, and leaves a Refusal as it is."""

    def changed_one(policy, answer, *_):
        if isinstance(answer, list):
            return [change(answer[0]), *answer[1:]]
        return change(answer) if isinstance(answer, Grant) else answer

    return changed_one


def fields(**values):
    """Some fields of a named tuple in place of what it has; a function makes them of it."""
    return lambda one: one._replace(
        **{key: made(one) if callable(made) else made for key, made in values.items()}
    )


def counted(**values):
    """The same of what a policy counts or lists."""
    return lambda policy, one, *_: fields(**values)(one)


def ordered(**values):
    """The same of the operations of a grant."""
    return granted(fields(ops=lambda one: fields(**values)(one.ops)))


def moved(change):
    return ordered(moves=lambda ops: tuple(map(change, ops.moves)))


def copied(change):
    """All copies of a move are changed."""
    return fields(copies=lambda move: tuple(map(change, move.copies)))


def stored(change):
    """All transfers in the background are changed."""
    return lambda policy, ops: ops._replace(background=tuple(map(change, ops.background)))


def leak(policy, least):
    if len(policy._pool.free) >= least:
        policy._pool.free.pop()


def without_growth_of_copies(answer):
    copied = sum(copy.length for copy in answer.ops.copies)
    return (
        answer._replace(growth=answer.growth._replace(slots=answer.growth.slots - copied))
        if copied
        else answer
    )


planted("RefusesForeverWhenFull", admit=instead(Refusal.LATER, Refusal.NEVER))
planted("DefersWhatCannotFit", admit=instead(Refusal.NEVER, Refusal.LATER))
planted("UnderstatesMaxSeqLen", max_seq_len=lambda policy, longest, *_: longest - 1)
planted("OverstatesMaxSeqLen", max_seq_len=lambda policy, longest, *_: longest + 1)
planted("AnswersMaxSeqLenInHalves", max_seq_len=lambda policy, longest, *_: longest / 2)
planted("NeverLoads", TieredCaching, load=always(Refusal.NEVER))
planted("OverstatesGuaranteedSteps", guaranteed_steps=always(1 << 60))
planted("GuaranteesLessThanNothing", guaranteed_steps=always(-1))
planted("GuaranteesHalfSteps", guaranteed_steps=always(0.5))
planted("FragmentsAsItGrows", usage=counted(largest_free=lambda used: used.free // 2))
planted("OmitsGrowth", extend=granted(fields(growth=NO_GROWTH)))
planted("OmitsEvictions", PrefixCaching, extend=granted(fields(evicted=NO_GROWTH)))
planted("ForgetsThatCopiesGrow", extend=granted(without_growth_of_copies))
planted(
    "CopiesTwiceInLongSteps",
    extend=lambda policy, answer, batch, num_tokens: (
        ordered(copies=lambda ops: ops.copies * 2)(policy, answer) if num_tokens > 1 else answer
    ),
)
planted("OmitsCopyOnWrite", extend=ordered(copies=()))
planted("ReturnsNone", extend=always(None))
planted(
    "AnswersWithOneGrant",
    admit=lambda policy, answers, *_: answers[0] if isinstance(answers, list) else answers,
)
around(
    "AnswersWithTooManyGrants",
    admit=lambda call, policy, seqs, num_tokens: call([*seqs, seqs[0]], num_tokens),
)
planted("ListsARefusal", admit=granted(always(Refusal.LATER)))
planted("FindsLessThanNothing", admit=granted(fields(num_cached=-1)))
planted("FindsTrue", admit=granted(fields(num_cached=True)))
planted("FindsMoreThanThereIs", admit=granted(fields(num_cached=1000)))
planted("GrowsByHalves", extend=granted(fields(growth=Growth(0.5))))
planted("GrowsByATuple", extend=granted(fields(growth=(0, 0, 0))))
planted("EvictsByHalves", extend=granted(fields(evicted=Growth(0, 0.5))))
planted("OrdersNone", admit=granted(fields(ops=None)))
planted("CopiesNothing", admit=ordered(copies=(Copy(0, 0, 0),)))
planted("CopiesFromNowhere", admit=ordered(copies=(Copy(-1, 0, 1),)))
planted("CopiesHalves", admit=ordered(copies=(Copy(0, 0.5, 1),)))
planted("CopiesBeyondThePool", admit=ordered(copies=(Copy(0, 89, 2),)))
planted("MovesATuple", move=moved(tuple))
planted("MovesWithinATier", move=moved(fields(target=lambda move: move.source)))
planted(
    "MovesToNowhere",
    move=moved(fields(target=lambda move: "disk" if move.target == HOST else DEVICE)),
)
planted("MovesFromElsewhere", TieredCaching, move=moved(fields(source="dram", target="nvme")))
planted("MovesBackwards", move=moved(copied(fields(length=lambda copy: -copy.length))))
planted("CountsInATuple", usage=lambda policy, used: tuple(used))
planted("CountsHalves", usage=counted(live=lambda used: used.live / 2))
planted("CountsAFreeSlotTwice", usage=counted(free=lambda used: used.free + 1))
planted("CountsLessThanNothing", usage=counted(saved=-1))
planted("CountsALiveSlotMore", usage=counted(live=lambda used: min(used.live + 1, used.held)))
planted("CountsMoreLiveThanHeld", usage=counted(live=lambda used: used.held + 1))
planted("CountsAHeldSlotLess", usage=counted(held=lambda used: max(used.held - 1, used.live)))
planted("CountsASavedSlotMore", usage=counted(saved=lambda used: used.saved + 1))
planted("CountsALargerRange", usage=counted(largest_free=lambda used: used.free + 1))
planted(
    "TablesBeyondThePool",
    table=lambda policy, table, *_: [Extent(at + 88, length) for at, length in table],
)
planted(
    "TablesOfTruthValues",
    table=lambda policy, table, *_: [Extent(False, length) for _, length in table],
)
planted("ReversesItsWindow", Window, table=lambda policy, table, *_: table[::-1])
planted("ListsNothingCached", PrefixCaching, non_sequence_slots=counted(cached=()))
planted(
    "ListsASlotTwice",
    PrefixCaching,
    non_sequence_slots=counted(cached=lambda others: others.cached[:1] * len(others.cached)),
)
planted("ListsNothingPinned", non_sequence_slots=counted(pinned=()))
planted("SaysNothingOfItsFootprint", footprint=always(None))
planted("SaysHalvesOfItsFootprint", footprint=always(Granular(8.0)))
planted("SaysAListOfItsFootprint", footprint=always([8]))
planted("MisstatesItsFootprint", footprint=lambda policy, *_: Granular(2 * policy.block_size))
planted(
    "OmitsSwapInCopies",
    move=lambda policy, answer, seqs, tier: (
        ordered(moves=())(policy, answer) if tier != HOST else answer
    ),
)
planted(
    "OmitsPrefixCopy", admit=granted(lambda one: Grant(one.num_cached))
)  # of its partial last block
planted(
    "FindsLessThanTheRegisteredPrefix",
    admit=granted(fields(num_cached=lambda one: max(one.num_cached - 1, 0))),
)
planted(
    "AssumesPromptStoredAfterPreemption",
    admit=lambda policy, answers, seqs, num_tokens: (
        [Grant(min(num_tokens, seqs[0].prompt_len) - 1)] * len(seqs)
        if isinstance(answers, list) and seqs[0].num_preemptions
        else answers
    ),
)
planted(
    "StoresAtOnce",
    TieredCaching,
    background=lambda policy, ops: Ops(moves=tuple(one.move for one in ops.background)),
)
planted("NamesTransfersAlike", TieredCaching, background=stored(fields(move_id=1)))
planted(
    "StoresFromSlot0",
    TieredCaching,
    background=stored(fields(move=lambda one: copied(fields(src=0))(one.move))),
)
planted(
    "StoresToSlot0",
    TieredCaching,
    background=stored(fields(move=lambda one: copied(fields(dst=0))(one.move))),
)
planted(
    "LeaksOnRefusal",
    admit=after(lambda policy, answer, *_: answer is Refusal.LATER and leak(policy, 1)),
)
planted("LeaksBlockOnRelease", release=after(lambda policy, *_: leak(policy, 4)))
planted(
    "LeaksAReferenceToItsPrefix",
    release=after(
        lambda policy, _, seq: policy._pool.share(
            policy._tables.prefixes.get(seq.registered_prefix, ())[:1]
        )
    ),
)
planted(
    "FindsStatesTooEarly", GroupedCaching, publish=after(lambda policy, *_: policy._unready.clear())
)
around(
    "SharesPartialBlock",
    _allocate_tables=lambda call, policy, seqs, *found: after(
        lambda *_: [policy._tables.fork(seqs[0], seq) for seq in seqs[1:]]
    )(policy, call(seqs[:1], *found)),
)
around(
    "SeatsHalf",
    admit=lambda call, policy, seqs, num_tokens: (  # of a group that comes back
        answers
        if isinstance(answers := call(seqs[: -(-len(seqs) // 2)], num_tokens), Refusal)
        else answers + [GRANTED] * (len(seqs) // 2)
    ),
)
around("AllocatesAtRandom", admit=before(lambda policy, *_: RANDOM.shuffle(policy._pool.free)))
around(
    "WritesWhereOthersRead",
    extend=before(
        lambda policy, batch, _: [index.tails.clear() for index in batch.indexes.values()]
    ),
)
around("FailsTheCheck", check=fail)
around(
    "ReadsOutputLenInAdmit",
    admit=lambda call, policy, seqs, _: call(seqs, policy.output_len[seqs[0].request_id]),
)
around("GrantsWithoutAllocating", ContiguousMax, extend=always(GRANTED))
around("Raises", release=lambda *_: [].pop())
around(
    "ShrinksABlockLess",
    shrink=lambda call, policy, seq, count: call(seq, max(count - policy.block_size, 0)),
)
around(
    "TakesTwiceThePool",
    __init__=lambda call, policy, pool, **options: call(
        replace(pool, num_slots=2 * pool.num_slots), **options
    ),
)
around(
    "TakesTwiceTheHost",
    __init__=lambda call, policy, pool, **options: call(
        replace(pool, tiers=host(2 * pool.slots_of(HOST))), **options
    ),
)
around(
    "RefusesTheSecond",
    admit=lambda call, policy, *asked: (
        Refusal.LATER if len(policy._tables.held) == 1 else call(*asked)
    ),
)
around(
    "RefusesSingleSteps",
    extend=lambda call, policy, batch, num_tokens: (
        Refusal.LATER if num_tokens == 1 and len(batch) == 2 else call(batch, num_tokens)
    ),
)
around(
    "RefusesLongSteps",
    guaranteed_steps=always(0),
    extend=lambda call, policy, batch, num_tokens: (
        Refusal.LATER
        if num_tokens > 1 and len(policy._tables.held) > 2
        else call(batch, num_tokens)
    ),
)
type("DeclaresMoves", (Breaks, ContiguousMax), {"moves_tiers": True})
type("DoesNotDeclareThatItShares", (Breaks, Paged), {"shares": False})


class RefusalDependsOnCallCount(Breaks, Paged):
    requested = 0

    def admit(self, seqs, num_tokens):
        self.requested += 1
        later = self.requested % 3 == 1 and self._tables.held
        return Refusal.LATER if later else super().admit(seqs, num_tokens)


class AllocatesBlockTwice(Breaks, Paged):
    def extend(self, batch, num_tokens):
        before = list(self._pool.free)
        answer = super().extend(batch, num_tokens)
        if len(self._pool.free) < len(before):
            self._pool.free[-1:] = [before[-1]]
        return answer


class LeaksHostBlocksOnSwapIn(Breaks, Paged):
    def move(self, seqs, tier):
        before = list(self._host.pool.free)
        answer = super().move(seqs, tier)
        if tier != HOST and isinstance(answer, Grant):
            self._host.pool.free = before
        return answer


class AllocatesHostBlockTwice(Breaks, Paged):
    """The last block of the host is given to two."""

    def move(self, seqs, tier):
        answer = super().move(seqs, tier)
        free = self._host.pool.free
        if tier == HOST and isinstance(answer, Grant) and not free:
            free.append(answer.ops.moves[0].copies[-1].dst // self.block_size)
        return answer


class PromisesACopy(Breaks, Paged):
    def guaranteed_steps(self, batch):
        index = batch.index(self, self._index)
        return (
            index.steps_within(max(self._pool.available() - len(index.tails), 0))
            if len(batch)
            else 0
        )


class AllocatesASlotLess(Breaks, Paged):
    footprint = MemoryPolicy.footprint

    def __init__(self, pool, block_size):
        super().__init__(pool, 1)

    def admit(self, seqs, num_tokens):
        return super().admit(seqs, max(num_tokens - 1, 1))


class KeepsABlock(Breaks, Paged):
    """While nothing is on the device, its last block is lost to rounding."""

    def usage(self):
        used, lost = super().usage(), 0 if self._tables.held else self.block_size
        return used._replace(
            allocated=used.allocated + lost, free=used.free - lost, largest_free=used.free - lost
        )

    def non_sequence_slots(self):
        others = super().non_sequence_slots()
        return others if self._tables.held else others._replace(rounding=(Extent(80, 8),))


class Hasty(OnePageSize):
    def first_read(self, column, token):
        return super().first_read(column, token + self.block_size)


class GivesBackTooEarly(Breaks, Grouped):
    def __init__(self, pool, block_size):
        super().__init__(pool, block_size)
        self.pages = Hasty(pool.num_slots * pool.num_layers, pool.groups, block_size)
