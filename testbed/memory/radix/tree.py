"""A tree of runs of blocks: the prefix cache of SGLang (Zheng et al., 2024; release 0.5.23).

A run is a sequence of adjacent blocks of content, which is split if two contents differ.
Unlocked runs are evicted a whole leaf at a time, in the order of a strategy.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Union

from testbed.memory.prefix_cache.hash_chain import Content
from testbed.memory.radix.leaf_queue import LeafQueue
from testbed.memory.radix.strategies import Strategy, lru

Contents = Union[tuple[Content, ...], "array[int]"]


class Run:
    """Adjacent blocks behind those of `parent`.

    key: the content of each block. blocks: where each is stored. locks: sequences that read it.
    used: the clock of its last use. made: that of its beginning. num_published: sequences that have
    published it. priority: the largest number of these. children: the runs behind it, by their
    first block's content. end: blocks from the root to its end. farthest: the largest `end` that a
    run with this beginning has had.
    """

    __slots__ = (
        "blocks",
        "children",
        "end",
        "farthest",
        "key",
        "locks",
        "made",
        "num_published",
        "parent",
        "priority",
        "used",
    )

    def __init__(self, parent: "Run | None", key: Contents, blocks: list[int], used: int) -> None:
        self.parent = parent
        self.key = key
        self.blocks = blocks
        self.locks = 0
        self.used = self.made = used
        self.num_published = 0
        self.priority = 0
        self.children: dict[Content, Run] = {}
        self.end: int = len(key) if parent is None else parent.end + len(key)
        self.farthest = self.end


class RadixTree:
    """Runs from one root.

    Attributes:
        root: the empty run, which is never evicted.
        num_evictable: blocks of runs without a lock; those of all their descendants are among them.
        num_locks: calls of `lock` that are not undone.
    """

    def __init__(self, strategy: Strategy = lru) -> None:
        self.rank = strategy
        self.root = Run(None, (), [], 0)
        self.root.locks = 1
        self.num_evictable = 0
        self.num_locks = 0
        self._clock = 0
        self._leaves = LeafQueue(strategy, self._is_evictable)

    def find(self, contents: Contents, limit: int) -> tuple[Run, int]:
        """The deepest run with any of the first `limit` blocks, and how many of them are stored.
        Changes nothing.
        """
        run, depth = self.root, 0
        while depth < limit and (child := run.children.get(contents[depth])) is not None:
            common = common_blocks(child.key, contents, depth, limit)
            run, depth = child, depth + common
            if common < len(child.key):
                break
        return run, depth

    def match(self, contents: Contents, limit: int) -> tuple[Run, int]:
        """`find`, as a use of what is found: a run is split where the match ends."""
        self._clock += 1
        run, depth = self.root, 0
        while depth < limit and (child := run.children.get(contents[depth])) is not None:
            common = common_blocks(child.key, contents, depth, limit)
            depth += common
            self._use(child)
            if common < len(child.key):
                return self._split(child, common), depth
            run = child
        return run, depth

    def insert(
        self, contents: Contents, blocks: list[int], num_published: int = 0, priority: int = 0
    ) -> tuple[Run, int]:
        """`blocks` store `contents`: the run that ends with them, and how many of the first blocks
        were stored in other blocks, or the same, before. The rest of `blocks` is the tree's now.

        num_published: blocks that the same sequence has published before. priority: its number.
        """
        run, depth = found = self.match(contents, len(contents))
        if depth < len(contents):
            self._clock += 1  # the new leaf was used after what a split has cut off
            run = Run(run, contents[depth:], blocks[depth:], self._clock)
            run.priority = priority
            found[0].children[contents[depth]] = run
            reach(run)
            self.num_evictable += len(run.key)
            self._offer(run)
        self._count(run, len(contents), num_published, priority)
        return run, depth

    def _count(self, run: Run, end: int, num_published: int, priority: int) -> None:
        """One sequence more has published what ends behind num_published blocks."""
        for node in path(run):
            node.num_published += end > num_published
            node.priority = max(node.priority, priority)
            end -= len(node.key)
            self._offer(node)

    def lock(self, run: Run) -> None:
        """Nothing up to the end of this run is evicted until `unlock`."""
        self.num_locks += 1
        for node in path(run):
            if not node.locks:
                self.num_evictable -= len(node.key)
            node.locks += 1

    def unlock(self, run: Run) -> None:
        """Undo one `lock` of the run."""
        self.num_locks -= 1
        for node in path(run):
            node.locks -= 1
            if not node.locks:
                self.num_evictable += len(node.key)
                self._offer(node)

    def evictable_in(self, run: Run, num_blocks: int) -> int:
        """Of the first num_blocks blocks, of which the last are in `run`, those that could be
        evicted.
        """
        nodes = list(path(run))
        behind = sum(len(node.key) for node in nodes) - num_blocks
        evictable = sum(len(node.key) for node in nodes if not node.locks)
        return evictable if run.locks else evictable - behind

    def evict(self, num_blocks: int) -> list[int]:
        """Drop whole leaves, the least recently used first, until num_blocks blocks are gone or all
        others are locked; the blocks of what is gone.
        """
        gone, leaves = list[int](), iter(self._leaves)
        while len(gone) < num_blocks and (leaf := next(leaves, None)) is not None:
            gone += self._give_up(leaf)
        return gone

    def _give_up(self, leaf: Run) -> list[int]:
        """The blocks of a leaf, which it has no more."""
        return self.drop(leaf)

    def drop(self, leaf: Run) -> list[int]:
        """Remove a leaf without a lock; its blocks."""
        parent = leaf.parent
        assert parent is not None, "the root is locked"
        del parent.children[leaf.key[0]]
        leaf.parent = None
        self.num_evictable -= len(leaf.key)
        self._offer(parent)
        return leaf.blocks

    def depth_first(self, ends: Sequence[Run]) -> list[int]:
        """The places of the runs in a walk that goes first where most of them are, and takes those
        at a run behind all below it.
        """
        weights, at = Counter[Run](), defaultdict[Run, list[int]](list)
        for place, end in enumerate(ends):
            at[end].append(place)
            weights.update([self.root, *path(end)])
        order, stack = list[int](), [(self.root, False)]
        while stack:
            run, is_walked = stack.pop()
            if is_walked:
                order += at[run]
                continue
            below = [child for child in run.children.values() if weights[child]]
            below.sort(key=weights.__getitem__, reverse=True)
            stack += [(run, True), *[(child, False) for child in reversed(below)]]
        return order

    def __iter__(self) -> Iterator[Run]:
        """All runs but the root."""
        found = list(self.root.children.values())
        while found:
            run = found.pop()
            found += run.children.values()
            yield run

    def check(self) -> None:
        """Raise AssertionError if runs, locks and counts do not belong to each other."""
        runs = list(self)
        for run in runs:
            parent = run.parent
            assert parent is not None, "a run without a parent"
            assert parent.children.get(run.key[0]) is run, "a lost run"
            assert len(run.key) == len(run.blocks) > 0, "contents and blocks differ"
            assert parent is self.root or parent.locks >= run.locks, "a lock without its path"
        evictable = sum(len(run.key) for run in runs if not run.locks)
        assert evictable == self.num_evictable, "evictable blocks are miscounted"
        blocks = [block for run in runs for block in run.blocks]
        assert len(blocks) == len(set(blocks)), "two runs have one block"
        lost = set(filter(self._is_evictable, runs)) - self._leaves.leaves
        assert not lost, "a leaf that is never evicted"

    def _split(self, run: Run, num_blocks: int) -> Run:
        """Cut the first blocks of a run off, as a run of their own in front of it; returns that."""
        parent = run.parent
        assert parent is not None
        front = type(run)(parent, run.key[:num_blocks], run.blocks[:num_blocks], run.used)
        front.locks, front.made, front.farthest = run.locks, run.made, run.farthest
        front.num_published, front.priority = run.num_published, run.priority
        parent.children[run.key[0]] = front
        run.parent, run.key, run.blocks = front, run.key[num_blocks:], run.blocks[num_blocks:]
        front.children[run.key[0]] = run
        self._offer(run)  # it begins later
        return front

    def _use(self, run: Run) -> None:
        run.used = self._clock
        self._offer(run)

    def _offer(self, run: Run) -> None:
        """Note a run that may be evicted from now on."""
        if self._is_evictable(run):
            self._leaves.offer(run)

    def _is_evictable(self, run: Run) -> bool:
        return not run.locks and not run.children and run.parent is not None


def path(run: Run) -> Iterator[Run]:
    """The run and all before it but the root, the last first."""
    while run.parent is not None:
        yield run
        run = run.parent


def reach(run: Run) -> None:
    """Note the end of a new run in all runs before it."""
    end, before = run.end, run.parent
    while before is not None and before.farthest < end:
        before.farthest = end
        before = before.parent


def common_blocks(key: Contents, contents: Contents, first: int, limit: int) -> int:
    """The number of blocks of `key` equal to those of `contents` from `first` on, below `limit`."""
    most = min(len(key), limit - first)
    if key[:most] == contents[first : first + most]:
        return most
    least = 1  # the first block is the child's name
    while least + 1 < most:
        middle = (least + most) // 2
        if key[least:middle] == contents[first + least : first + middle]:
            least = middle
        else:
            most = middle
    return least
