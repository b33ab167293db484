"""The contract of eviction orders, as a check of a class.

13 A victim is evictable: a node that was added, and that no prompt has hit since. 14 Nothing is
lost or named twice: every evictable node is a victim in the end, and an order that has none left
raises an error. 15 victims(n) names the victims that n calls of victim() would. 16 An order changes
nothing of a node but its memo and ticket, and shares nothing with other orders. 9 The same calls
name the same victims. 10 Calls raise no error, and answers have the types of the API.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, TypeAlias

from testbed.checks.contract.clauses import ClauseBroken, broken_in, require
from testbed.checks.contract.search import shortest_break
from testbed.memory.prefix_cache.caching_pool import CachingPool
from testbed.memory.prefix_cache.eviction.order import EvictionOrder, oracle_of
from testbed.memory.prefix_cache.eviction.ranked import Ranked
from testbed.memory.prefix_cache.prefix_index import Node
from testbed.memory.protocols import FollowsMisses

MakeOrder: TypeAlias = Callable[[], EvictionOrder]
NUM_BLOCKS = 8
STRIDE = 100  # between the contents of two stories
NUM_CALLS = 40


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt comes whose first `shared` blocks are those of story 0, the others of `story`; it
    belongs to a session, 0 for none.
    """

    num_blocks: int
    story: int = 0
    shared: int = 0
    session: int = 0

    @property
    def contents(self) -> list[int]:
        return [
            block if block < self.shared else STRIDE * self.story + block
            for block in range(self.num_blocks)
        ]


@dataclass(frozen=True, slots=True)
class End:
    """The `pick`th prompt of those that hold blocks, the newest first, gives them back."""

    pick: int = 0


@dataclass(frozen=True, slots=True)
class CloseSession:
    """No prompt of the session will come."""

    session: int


Call: TypeAlias = Prompt | End | CloseSession


class WatchedOrder(EvictionOrder):
    """Passes every call on to an order, and checks its answers."""

    def __init__(self, order: EvictionOrder, *, one_by_one: bool) -> None:
        self.order = order
        if isinstance(order, Ranked):
            order.rank = with_checked_answers(order.rank)  # type: ignore[assignment, method-assign]
        self.one_by_one = one_by_one
        self.follows_misses = order if isinstance(order, FollowsMisses) else None
        self.evictable: dict[Node, None] = {}
        self.victims_named: list[str] = []
        self.log: list[str] = []

    def add(self, nodes: Sequence[Node]) -> None:
        self.log.append(f"add({names(nodes)})")
        self.order.session = self.session
        self.evictable.update(dict.fromkeys(nodes))
        self._unchanged(nodes, lambda: self.order.add(nodes))

    def hit(self, nodes: Sequence[Node]) -> None:
        self.log.append(f"hit({names(nodes)})")
        self._unchanged(nodes, lambda: self.order.hit(nodes))
        for node in nodes:
            self.evictable.pop(node, None)

    def missed(self, codes: Iterable[int]) -> None:
        if self.follows_misses is not None:
            self.follows_misses.missed(codes)

    def victim(self) -> Node:
        self.log.append("victim()")
        with self._losing_nothing():
            node: object = self.order.victim()
        return self._checked(node)

    def victims(self, count: int) -> Iterator[Node]:
        if self.one_by_one:
            for _ in range(count):
                yield self.victim()
            return
        self.log.append(f"victims({count})")
        with self._losing_nothing():
            victims = iter(self.order.victims(count))
        for number in range(count):
            with self._losing_nothing():
                node: object = next(victims, None)
            require(15, node is not None, f"victims({count}) names {number}")
            yield self._checked(node)
        require(15, next(victims, None) is None, f"victims({count}) names more")

    def close_session(self, session: int) -> None:
        self.log.append(f"close_session({session})")
        self.order.close_session(session)

    @contextmanager
    def _losing_nothing(self) -> Iterator[None]:
        """The order is asked for a victim, of which there is at least one."""
        try:
            yield
        except Exception as error:
            left = f"{names(self.evictable)} can be evicted"
            raised = f"{type(error).__name__}: {error}"
            raise ClauseBroken(14, f"{left}, but the order raised {raised}") from error

    def _checked(self, node: object) -> Node:
        """A victim, which is evictable and leaves the order."""
        require(10, isinstance(node, Node), f"the victim is {node!r}, which is no Node")
        assert isinstance(node, Node)
        self.log[-1] += f" -> {name_of(node)}"
        why = "a prompt holds it" if not node.evictable else "it was never added, or has left"
        require(13, node in self.evictable, f"the victim is {name_of(node)}, but {why}")
        del self.evictable[node]
        self.victims_named.append(name_of(node))
        return node

    def _unchanged(self, nodes: Sequence[Node], call: Callable[[], object]) -> None:
        before = [facts(node) for node in nodes]
        call()
        for node, unchanged in zip(nodes, before, strict=True):
            require(16, facts(node) == unchanged, f"{name_of(node)} was changed, besides its memo")


def with_checked_answers(rank: Callable[[Node], Any]) -> Callable[[Node], Any]:
    """The function, whose answers must have an order, for a heap of others keeps none."""

    def checked(node: Node) -> Any:
        answer = rank(node)
        require(10, is_ordered(answer), f"rank() answered {answer!r}, which has no order")
        return answer

    return checked


def is_ordered(rank: Any) -> bool:
    """True if the rank can be compared, and equals itself, as no NaN does."""
    if isinstance(rank, tuple):
        return all(map(is_ordered, rank))
    try:
        return bool(rank == rank and not rank < rank)
    except TypeError:
        return False


def facts(node: Node) -> tuple[object, ...]:
    """Facts of a node that an order may not change."""
    return (
        node.block,
        node.children,
        node.code,
        node.content,
        node.depth,
        node.hits,
        node.evictable,
        node.parent,
    )


def name_of(node: Node) -> str:
    return f"block {node.content}"


def names(nodes: Iterable[Node]) -> str:
    return ", ".join(map(name_of, nodes))


class Cache:
    """A prefix cache of NUM_BLOCKS blocks, whose order is watched."""

    def __init__(self, order: EvictionOrder, *, one_by_one: bool) -> None:
        self.order = WatchedOrder(order, one_by_one=one_by_one)
        self.pool = CachingPool(NUM_BLOCKS, self.order)
        order.num_blocks = NUM_BLOCKS
        self.oracle = oracle_of(order)
        self.held: list[tuple[list[int], int | None]] = []  # blocks of a prompt, its session

    def run(self, calls: Sequence[Call]) -> list[str]:
        """Carry out all calls, then evict everything; the victims in order."""
        chain = self.pool.index.chain
        if self.oracle is not None:
            self.oracle.foresee(chain(call.contents) for call in calls if isinstance(call, Prompt))
        for call in calls:
            match call:
                case Prompt():
                    self.come(call)
                case End(pick) if self.held:
                    self.go(len(self.held) - 1 - pick % len(self.held))
                case CloseSession(session):
                    self.order.close_session(session)
        while self.held:
            self.go(0)
        self._evict_all()
        return self.order.victims_named

    def come(self, prompt: Prompt) -> None:
        """One that does not fit beside those that hold blocks finds nothing."""
        if self.oracle is not None:
            self.oracle.requested(self.pool.index.chain(prompt.contents))
        nodes = self.pool.index.match(prompt.contents)
        revived = sum(node.evictable for node in nodes)
        missing = prompt.num_blocks - len(nodes)
        if missing > self.pool.available() - revived:
            return
        if nodes:
            self.pool.hold(nodes)
        self.pool.missed(prompt.contents, nodes)
        if missing > len(self.pool.free):
            self.pool.evict(missing - len(self.pool.free))
        new = self.pool.take(missing)
        last = nodes[-1] if nodes else self.pool.index.root
        self.pool.publish(last, prompt.contents[len(nodes) :], new)
        self.held.append(([node.block for node in nodes] + new, prompt.session or None))

    def go(self, index: int) -> None:
        blocks, self.order.session = self.held.pop(index)
        self.pool.put(blocks)

    def _evict_all(self) -> None:
        if self.pool.num_evictable:
            self.pool.evict(self.pool.num_evictable)
        left = list(self.order.evictable)
        require(14, not left, f"{names(left)} never became a victim")
        try:
            node = self.order.order.victim()
        except Exception:
            return
        raise ClauseBroken(14, f"no node is left, and victim() names {node!r}")


def histories(random: Random) -> list[Call]:
    """Prompts of three stories come and go, some of which share their beginning."""
    calls = list[Call]()
    while len(calls) < NUM_CALLS:
        kind = random.random()
        if kind < 0.5:
            num_blocks = random.randint(1, 5)
            shared = random.choice([0, 0, random.randint(0, num_blocks)])
            calls.append(Prompt(num_blocks, random.randrange(3), shared, random.randrange(4)))
        elif kind < 0.95:
            calls.append(End(random.randrange(4)))
        else:
            calls.append(CloseSession(random.randint(1, 3)))
    return calls


def broken_by(make: MakeOrder, calls: Sequence[Call]) -> ClauseBroken | None:
    """The clause that the calls break."""
    cache = Cache(make(), one_by_one=False)

    def check() -> None:
        victims = cache.run(calls)
        for clause, one_by_one, difference in (
            (9, False, "the same calls"),
            (15, True, "victim() in place of victims()"),
        ):
            again = Cache(make(), one_by_one=one_by_one).run(calls)
            require(clause, again == victims, f"{difference} named {again}, and first {victims}")
        require(16, beside_another(make, calls) == victims, "another order changed the victims")

    return broken_in(check, "the last call", lambda: cache.order.log)


def beside_another(make: MakeOrder, calls: Sequence[Call]) -> list[str]:
    """The victims of an order while another one of the class has evictable nodes."""
    other = Cache(make(), one_by_one=False)
    if other.oracle is not None:
        other.oracle.foresee([])
    other.come(Prompt(5, 2))
    other.go(0)
    try:
        return Cache(make(), one_by_one=False).run(calls)
    except ClauseBroken as broken:
        raise ClauseBroken(16, f"another order changed the victims: {broken}") from broken


def check_order(make: MakeOrder, num_examples: int = 200) -> ClauseBroken | None:
    """The clause that an eviction order breaks, with the shortest calls that break it; None if it
    keeps all.
    """
    random = Random(0)
    for _ in range(num_examples):
        calls = histories(random)
        broken = broken_by(make, calls)
        if broken is not None:
            return shortest_break(calls, broken, partial(broken_by, make))
    return None
