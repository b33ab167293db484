"""Run the contract against any policy and report what broke, with the shortest calls that break
it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from itertools import chain, count
from random import Random
from typing import Any, Protocol, TypeVar

from testbed.checks.contract.clauses import ClauseBroken, call_raised, require
from testbed.checks.contract.histories import MAX_CALLS, Act, Admit, Call, Histories
from testbed.checks.contract.moves import Group, Moves
from testbed.checks.contract.questions import MakePolicy, check_max_seq_len
from testbed.core.errors import OracleError
from testbed.core.layers import KvGroup
from testbed.core.request import Incoming
from testbed.core.sequence import Sequence
from testbed.core.slots import DEVICE, HOST, ceil_div
from testbed.memory.capabilities import Capabilities, capabilities_of
from testbed.memory.policy import PoolSpec, Tier, host

# Which groups can, by verb, and what they do then.
ACTS: dict[str, tuple[Callable[[Group], bool], Callable[[Moves, Group, int], object]]] = {
    "extend": (lambda group: group.tier == DEVICE and not group.in_batch, Moves.extend),
    "join": (
        lambda group: group.decodes and not group.has_spare,
        lambda moves, group, _: moves.join(group),
    ),
    "refork": (lambda group: group.decodes and len(group.sequences) > 1, Moves.refork),
    "move": (
        lambda group: group.tier == HOST or (group.decodes and not group.has_spare),
        lambda moves, group, _: moves.move(group),
    ),
    "preempt": (lambda group: group.tier == DEVICE, lambda moves, group, _: moves.preempt(group)),
    "draft": (
        lambda group: group.decodes and not group.in_batch and len(group.sequences) == 1,
        Moves.draft,
    ),
    "speculate": (
        lambda group: group.decodes and not group.in_batch and len(group.sequences) == 1,
        Moves.speculate,
    ),
    "truncate": (lambda group: group.tier == DEVICE and len(group.sequences) == 1, Moves.truncate),
    "lease": (lambda group: group.decodes, lambda moves, group, _: moves.lease(group)),
    "discard": (lambda group: group.decodes, lambda moves, group, _: moves.discard(group)),
    "return": (lambda group: group.tier is None, Moves.admit),
    "release": (lambda group: True, lambda moves, group, _: moves.release(group)),
}
SAME_PLAN = ("extend", "return")  # what a plan may have besides admissions
OTHER_AGAIN = (
    "the same calls gave different answers or tables (objects of the class share something that "
    "changes, or it follows the order of a set)"
)
OTHER_WITH_QUESTIONS = (
    "the same calls gave different answers or tables when refused calls were repeated and the "
    "facts were read more often (neither may change anything, not even the order of free slots, "
    "nor may another object of the class)"
)
MAX_TRIES = 2000
ROOM = 16  # longest sequences for which any policy has slots
AT_LEAST_ONE = {"prompt_len", "output_len", "num_tokens", "num_seqs"}
C = TypeVar("C", bound=Any)
# Half of the layers have a window, for policies that know groups.
GROUPS = (
    KvGroup("full", num_layers=1, slot_bytes=1),
    KvGroup("window", num_layers=1, slot_bytes=1, window=10),
)


def tiers_below(host_slots: int) -> tuple[Tier, ...]:
    """A host of host_slots slots, and two more tiers, for policies that use them."""
    return *host(host_slots), Tier("dram", 2 * host_slots), Tier("nvme", 4 * host_slots)


# Roomy; tight, and no multiple of a block size; smaller than a sequence may be, with a host that
# one soon fills.
POOLS = tuple(
    PoolSpec(num_slots, max_len, tiers_below(host_slots), num_layers=2, groups=GROUPS)
    for num_slots, max_len, host_slots in ((600, 256, 300), (131, 80, 60), (93, 128, 32))
)


class Harness(Moves):
    """Makes the moves that the calls describe, if they make sense."""

    def run(self, calls: Iterable[Call]) -> list[object]:
        """Carry out all calls, then release everything; the visible history, for clause 9."""
        try:
            for call in calls:
                self._carry_out(call)
                self.questions.check()
            self.run_plan()
            self.end_leases()
            for group in list(self.groups.values()):
                self.release(group)
                self.questions.check()
            while self.witness.memory.in_transit:
                self.land(0)
                self.questions.check()
            used = self.policy.usage()
            returned = used.held == used.allocated == len(self.witness.pinned) + used.saved
            require(4, returned, f"{used} though everything is released")
        except ClauseBroken:
            raise
        except Exception as error:
            if isinstance(error, OracleError):
                raise ClauseBroken(10, f"the last call raised {error}") from error
            raise call_raised("the last call", error) from error
        return self.questions.answers

    def _carry_out(self, call: Call) -> None:
        if isinstance(call, Act) and call.verb not in SAME_PLAN:
            self.run_plan()
        match call:
            case Admit():
                self._admit_new(call)
            case Act("register", _, num_tokens):
                if (
                    num_tokens
                    and not self.questions.lengths
                    and self.memory.registers_prefixes is not None
                ):
                    self.questions.register(num_tokens)
            case Act("flood"):
                self._flood()
            case Act("land", pick):
                self.land(pick)
            case Act("end_lease"):
                self.end_leases()
            case Act("step", _, num_tokens):
                self.step(num_tokens)
            case Act(verb, pick, number) if verb in ACTS:
                can, act = ACTS[verb]
                groups = list(filter(can, self.groups.values()))
                if groups:
                    act(self, groups[-1 - pick % len(groups)], number)

    def _admit_new(self, call: Admit) -> bool:
        registered_prefix = self.questions.registered_prefix if call.provided else 0
        prompt_len = max(call.prompt_len, registered_prefix)
        first, request_id = len(self.witness.tokens), len(self.questions.lengths)
        ids = list(range(first, first + call.num_seqs))
        prompt = self.witness.stories.prompt(ids, call, prompt_len, registered_prefix)
        request = Incoming(
            request_id,
            0,
            prompt_len,
            call.num_seqs,
            registered_prefix=registered_prefix,
            prompt_ids=prompt,
        )
        final_len = min(prompt_len + call.output_len, self.questions.max_len)
        group = Group(request, [Sequence(i, request) for i in ids], final_len, prompt_len)
        self.questions.lengths[request_id] = final_len - prompt_len
        self.witness.tokens.update((seq.seq_id, list(prompt)) for seq in group.sequences)
        group.note = f"  # {call.shared} tokens of story {call.story}" if call.shared else ""
        if call.waits:
            hit = self.memory.lookup(group.first)
            self.questions.load(group.first, prompt_len, group.note, hit)
            return False
        admitted = self.admit(group, call.chunk)
        if self.questions.thorough and not registered_prefix:
            check_max_seq_len(self.questions.fresh(), request, group.final_len)
        if admitted:
            self.groups[request_id] = group
        return admitted

    def _flood(self) -> None:
        before, num_tokens = set(self.groups), self.questions.max_len // 2
        num_left = self.policy.usage().total
        while num_tokens:
            if not self._admit_new(Admit(num_tokens, 1)):
                num_tokens //= 2
                continue
            num_left -= num_tokens
            if num_left < 0:  # a policy that grants slots it has not would never refuse
                self.witness.check_usage()
        self.run_plan()
        for request_id in [i for i in self.groups if i not in before]:
            self.release(self.groups[request_id])


def broken_by(
    make: MakePolicy, pool: PoolSpec, calls: list[Call], *, twice: bool = True
) -> ClauseBroken | None:
    """The clause that the calls break. They are carried out `twice` for clause 9, which nothing
    else needs.
    """
    harness = Harness(make, pool)
    try:
        history = harness.run(calls)
        if twice and history != Harness(make, pool, thorough=False).run(calls):
            again = Harness(make, pool).run(calls)
            raise ClauseBroken(9, OTHER_WITH_QUESTIONS if again == history else OTHER_AGAIN)
    except ClauseBroken as broken:
        broken.calls = [shown_pool(harness.memory, pool), *harness.questions.log]
        return broken
    return None


def shown_pool(memory: Capabilities, pool: PoolSpec) -> str:
    """A pool of the contract, without the tiers and groups that a policy does not use."""
    parts = [f"num_slots={pool.num_slots}", f"max_len={pool.max_len}"]
    if memory.swaps is not None or memory.stores_below is not None:
        parts.append(f"tiers={[(tier.name, tier.num_slots) for tier in pool.tiers]}")
    if memory.layered is not None:
        parts.append(f"num_layers={pool.num_layers}, groups={pool.groups}")
    return f"PoolSpec({', '.join(parts)})"


class Progress(Protocol):
    """A follower of a check."""

    def checked(self, done: int, total: int) -> None:
        """`done` of `total` histories have been run."""

    def shortened(self, num_calls: int) -> None:
        """A history that breaks a clause was cut to num_calls calls."""


class Unseen:
    """The progress of a check that nothing follows."""

    def checked(self, done: int, total: int) -> None:
        """Nothing follows."""

    def shortened(self, num_calls: int) -> None:
        """Nothing follows."""


UNSEEN = Unseen()


def check_policy(
    make: MakePolicy,
    pools: Iterable[PoolSpec] = POOLS,
    max_examples: int = 200,
    *,
    shrink: bool = True,
    progress: Progress = UNSEEN,
) -> ClauseBroken | None:
    """The clause that a policy breaks in one of these pools, with the calls that break it; None if
    all hold.

    The calls are the shortest such sequence if `shrink`, else the first one found, which is
    faster. The same policy gets the same verdict every time.
    """
    pools, num_speculating = list(pools), ceil_div(max_examples, 5)
    total = len(pools) * (max_examples + num_speculating + 1)
    done = count(1)
    for pool in pools:
        histories = histories_of(make, pool)
        short = (histories.draw() for _ in range(max_examples))
        speculating = (histories.speculating() for _ in range(num_speculating))
        for calls in chain(short, speculating, [histories.long()]):
            broken = broken_by(make, pool, calls)
            progress.checked(next(done), total)
            if broken is not None:
                return shrunk(make, pool, calls, broken, progress) if shrink else broken
    return None


def histories_of(make: MakePolicy, pool: PoolSpec) -> Histories:
    """Random histories of what a policy can do in this pool."""
    roomy = capabilities_of(make(replace(pool, num_slots=ROOM * pool.max_len)))
    memory = capabilities_of(make(pool))
    rejects_several = memory.loads_hits is not None  # its schedulers do, as SGLang
    serves_several = not rejects_several and roomy.policy.max_seq_len(1, 2) > 0
    return Histories(memory, pool.max_len, Random(0), serves_several=serves_several)


def shrunk(
    make: MakePolicy,
    pool: PoolSpec,
    calls: list[Call],
    broken: ClauseBroken,
    progress: Progress = UNSEEN,
) -> ClauseBroken:
    """`broken`'s clause, broken by the shortest calls that a bounded search finds."""
    progress.shortened(len(calls))

    def again(candidate: list[Call]) -> ClauseBroken | None:
        found = broken_by(make, pool, candidate, twice=broken.clause == 9)
        if is_same(found, broken):
            progress.shortened(len(candidate))
        return found

    max_tries = MAX_TRIES * MAX_CALLS // max(len(calls), MAX_CALLS)
    return shortest_break(calls, broken, again, max_tries=max_tries)


def without_runs(items: list[C]) -> Iterator[list[C]]:
    size = len(items)
    while size := size // 2:
        for start in range(len(items) - size, -1, -size):
            yield items[:start] + items[start + size :]


def smaller(calls: list[C]) -> Iterator[list[C]]:
    """The calls but for some, the longest runs first; then with one number smaller."""
    yield from without_runs(calls)
    for i, call in enumerate(calls):
        for field in fields(call):
            value, least = getattr(call, field.name), int(field.name in AT_LEAST_ONE)
            for less in (
                dict.fromkeys((least, value // 2, value - 1)) if isinstance(value, int) else ()
            ):
                if least <= less < value:
                    changed: dict[str, Any] = {field.name: type(value)(less)}
                    yield [*calls[:i], replace(call, **changed), *calls[i + 1 :]]


def shortest(
    calls: list[C],
    fails: Callable[[list[C]], bool],
    fewer: Callable[[list[C]], Iterator[list[C]]] = smaller,
    max_tries: int = MAX_TRIES,
) -> list[C]:
    """The shortest calls that max_tries tries find and that still fail; `fewer` yields candidates a
    step smaller.
    """
    candidates = fewer(calls)
    for _ in range(max_tries):
        candidate = next(candidates, None)
        if candidate is None:
            break
        if fails(candidate):
            calls, candidates = candidate, fewer(candidate)
    return calls


def is_same(found: ClauseBroken | None, broken: ClauseBroken) -> bool:
    """True if calls break the same clause again."""
    return found is not None and found.clause == broken.clause


def shortest_break(
    calls: list[C],
    broken: ClauseBroken,
    broken_by: Callable[[list[C]], ClauseBroken | None],
    fewer: Callable[[list[C]], Iterator[list[C]]] = smaller,
    max_tries: int = MAX_TRIES,
) -> ClauseBroken:
    """`broken`'s clause, broken by the shortest calls that max_tries tries find; broken_by: the
    clause that calls break.
    """
    found = broken_by(
        shortest(calls, lambda tried: is_same(broken_by(tried), broken), fewer, max_tries)
    )
    return found if found is not None and is_same(found, broken) else broken
