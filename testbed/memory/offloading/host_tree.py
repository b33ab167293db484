"""A radix tree of runs on the device and in a host pool below it: SGLang's HiCache (0.5.23).

The runs on the device are the beginning of every path. A leaf of these, whose lock count is 0,
leaves the device as a whole; it stays in the tree if the host has a copy.
"""

from collections.abc import Iterator

from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.radix.leaf_queue import LeafQueue
from testbed.memory.radix.strategies import Strategy, lru
from testbed.memory.radix.tree import Contents, RadixTree, Run, common_blocks, path, reach


class Write:
    """A run that is being written to the host, locked until `landed`. runs: `run`, and what a split
    has cut off its beginning since. blocks: of the device, and the host's for each.
    """

    __slots__ = ("blocks", "run", "runs")

    def __init__(self, run: "HostRun", blocks: list[tuple[int, int]]) -> None:
        self.run = run
        self.runs = [run]
        self.blocks = blocks


class Load:
    """The runs that end with `run`, on their way to the device and locked until `end_load`.

    pinned: those whose host copy stays: `run`, and what a split has cut off its beginning since.
    """

    __slots__ = ("pinned", "run")

    def __init__(self, run: "HostRun") -> None:
        self.run = run
        self.pinned = [run]
        run.loads.append(self)


class HostRun(Run):
    """A run, of which `blocks` are the device's and `host` the host's; each may be missing.

    num_on_device: children on the device. num_moving: locks of transfers. write: it is being
    written. loads: those that pin its host copy. brought_by: the load that brings it up.
    """

    __slots__ = ("brought_by", "host", "loads", "num_moving", "num_on_device", "write")

    def __init__(self, parent: "Run | None", key: Contents, blocks: list[int], used: int) -> None:
        super().__init__(parent, key, blocks, used)
        self.host: list[int] = []
        self.num_on_device = 0
        self.num_moving = 0
        self.write: Write | None = None
        self.loads: list[Load] = []
        self.brought_by: Load | None = None

    @property
    def on_device(self) -> bool:
        return bool(self.blocks)

    @property
    def is_moving(self) -> bool:
        """True if transfers alone lock it."""
        return 0 < self.locks == self.num_moving


class HostTree(RadixTree):
    """Writes a run to the host when `threshold` sequences have published it, with all before it
    that the host lacks (write_through, write_through_selective).

    The host makes room by its own leaves, those without a copy on the device; if these are too
    few, nothing is written. A copy stays while its run is on the device.

    Attributes:
        host: the pool below.
        writes: those that have been decided and have not begun.
        num_written: blocks whose write was decided.
        evicted_below: blocks that the host has given up.
        num_moving: blocks of the device of runs that transfers alone lock.
    """

    root: HostRun

    def __init__(self, num_blocks: int, threshold: int, strategy: Strategy = lru) -> None:
        super().__init__(strategy)
        self.root = HostRun(None, (), [], 0)
        self.root.locks = 1
        self.host = BlockPool(num_blocks)
        self.writes: list[Write] = []
        self.num_written = self.evicted_below = self.num_moving = 0
        self._threshold = threshold
        self._below = LeafQueue(strategy, self._is_host_leaf)

    # Contents

    def on_device(self, run: Run, num_blocks: int) -> tuple[Run, int]:
        """The last run on the device on the way to `run`, which ends with or behind the first
        num_blocks blocks; how many of them are on the device.
        """
        depth = sum(len(node.key) for node in path(run))
        while run.parent is not None and not run.blocks:
            depth -= len(run.key)
            run = run.parent
            num_blocks = min(num_blocks, depth)
        return run, num_blocks

    def insert(
        self, contents: Contents, blocks: list[int], num_published: int = 0, priority: int = 0
    ) -> tuple[Run, int]:
        """As RadixTree.insert; what the host alone had is on the device again, in `blocks`."""
        self._clock += 1
        run, depth, known = self.root, 0, 0
        while depth < len(contents) and contents[depth] in run.children:
            run = self._walk(run.children[contents[depth]], contents, depth)
            end = depth + len(run.key)
            if run.blocks:
                known = end
            else:
                self._restore(run, blocks[depth:end])
            self._publish(run, priority, is_new=end > num_published)
            depth = end
        if depth < len(contents):
            self._clock += 1
            run = self._add(run, contents[depth:], blocks[depth:])
            self._publish(run, priority, is_new=True)
        return run, known

    def _walk(self, child: Run, contents: Contents, depth: int) -> HostRun:
        """The beginning of a child that these contents have too, which is used now."""
        self._use(child)
        common = common_blocks(child.key, contents, depth, len(contents))
        run = self._split(child, common) if common < len(child.key) else child
        assert isinstance(run, HostRun)
        return run

    def _add(self, parent: HostRun, key: Contents, blocks: list[int]) -> HostRun:
        run = HostRun(parent, key, blocks, self._clock)
        parent.children[key[0]] = run
        reach(run)
        parent.num_on_device += 1
        self.num_evictable += len(key)
        self._offer(run)
        return run

    def _raise(self, run: HostRun, blocks: list[int]) -> None:
        """A run of the host alone is in these blocks of the device too."""
        run.blocks = blocks
        assert isinstance(run.parent, HostRun)
        run.parent.num_on_device += 1
        if not run.locks:
            self.num_evictable += len(blocks)
        self._offer(run)

    def _restore(self, run: HostRun, blocks: list[int]) -> None:
        """A sequence has computed again what the host alone had."""
        self._raise(run, blocks)

    def _publish(self, run: HostRun, priority: int, *, is_new: bool) -> None:
        """A sequence has published the run. is_new: for the first time."""
        run.priority = max(run.priority, priority)
        if is_new:
            run.num_published += 1
        self._offer(run)
        if is_new and not run.host and run.num_published >= self._threshold:
            lacking = [node for node in path(run) if isinstance(node, HostRun) and not node.host]
            for node in reversed(lacking):
                if not self._begin_write(node):
                    return

    def lock(self, run: Run, num_moving: int = 0) -> None:
        """As RadixTree.lock. num_moving: 1 for the lock of a transfer."""
        for node in path(run):
            assert isinstance(node, HostRun)
            before = node.is_moving
            if not node.locks:
                self.num_evictable -= len(node.blocks)
            node.locks += 1
            node.num_moving += num_moving
            self.num_moving += (node.is_moving - before) * len(node.blocks)

    def unlock(self, run: Run, num_moving: int = 0) -> None:
        """Undo one `lock` of the run with the same num_moving."""
        for node in path(run):
            assert isinstance(node, HostRun)
            before = node.is_moving
            node.locks -= 1
            node.num_moving -= num_moving
            self.num_moving += (node.is_moving - before) * len(node.blocks)
            if not node.locks:
                self.num_evictable += len(node.blocks)
                self._offer(node)

    # To the host

    def _begin_write(self, run: HostRun) -> bool:
        """Write a run in the background, if the host has room for it."""
        if not self._ensure_room(len(run.key)):
            return False
        self._take_host(run)
        run.write = Write(run, list(zip(run.blocks, run.host, strict=True)))
        self.writes.append(run.write)
        self.lock(run, 1)
        return True

    def _take_host(self, run: HostRun) -> None:
        run.host = self.host.take(len(run.key))
        self.num_written += len(run.key)

    def landed(self, write: Write) -> None:
        """A write has ended."""
        for run in write.runs:
            run.write = None
        self.unlock(write.run, 1)

    def _ensure_room(self, num_blocks: int) -> bool:
        """Evict from the host until num_blocks blocks are free; False if they cannot be."""
        missing = num_blocks - len(self.host.free)
        return missing <= 0 or self._evict_below(missing) >= missing

    def _evict_below(self, num_blocks: int, freed: int = 0) -> int:
        """Evict leaves of the host until num_blocks blocks are freed, `freed` of them before."""
        leaves = iter(self._below)
        while freed < num_blocks and (leaf := next(leaves, None)) is not None:
            assert isinstance(leaf, HostRun), "a run of this tree"
            freed += len(leaf.host)
            self.drop(leaf)
        return freed

    # From the host

    def begin_load(self, run: HostRun) -> Load:
        """Lock and pin what ends with this run, which the host has; see `lift`."""
        self.lock(run, 1)
        return Load(run)

    def lift(self, load: Load, blocks: list[int]) -> list[tuple[int, int]]:
        """Bring up what is below of it to these blocks of the device; (host, device) blocks."""
        runs = [node for node in path(load.run) if isinstance(node, HostRun) and not node.blocks]
        source, first = [], 0
        for run in reversed(runs):
            self._raise(run, blocks[first : first + len(run.key)])
            self.num_moving += run.is_moving * len(run.blocks)
            run.brought_by = load
            source += run.host
            first += len(run.key)
        return list(zip(source, blocks, strict=True))

    def end_load(self, load: Load) -> None:
        """Ends a load: its blocks are there, or were not brought up."""
        for run in load.pinned:
            run.loads.remove(load)
        for node in path(load.run):
            if isinstance(node, HostRun) and node.brought_by is load:
                self._brought(node)
        self.unlock(load.run, 1)

    def _brought(self, run: HostRun) -> None:
        run.brought_by = None

    # Eviction

    def _give_up(self, leaf: Run) -> list[int]:
        assert isinstance(leaf, HostRun), "a run of this tree"
        return self._demote(leaf) if leaf.host else self.drop(leaf)

    def _demote(self, leaf: HostRun) -> list[int]:
        """The blocks of a leaf that the host has too, which alone keeps it."""
        blocks, leaf.blocks = leaf.blocks, []
        self._left_device(leaf, leaf.parent, len(blocks))
        self._offer(leaf)
        return blocks

    def drop(self, leaf: Run) -> list[int]:
        """Remove a leaf without a lock, and its copy; its blocks of the device."""
        assert isinstance(leaf, HostRun), "a run of this tree"
        parent, leaf.parent = leaf.parent, None
        assert parent is not None, "the root is locked"
        del parent.children[leaf.key[0]]
        self._free_host(leaf)
        if leaf.blocks:
            self._left_device(leaf, parent, len(leaf.blocks))
        self._offer(parent)
        return leaf.blocks

    def _left_device(self, leaf: HostRun, parent: Run | None, num_blocks: int) -> None:
        assert isinstance(parent, HostRun)
        parent.num_on_device -= 1
        self.num_evictable -= num_blocks
        self._offer(parent)

    def _free_host(self, run: HostRun) -> None:
        self.host.put(run.host)
        self.evicted_below += len(run.host)
        run.host = []

    def _split(self, run: Run, num_blocks: int) -> Run:
        assert isinstance(run, HostRun), "a run of this tree"
        front = super()._split(run, num_blocks)
        assert isinstance(front, HostRun), "of the same class"
        front.num_moving, front.num_on_device = run.num_moving, int(run.on_device)
        front.host, run.host = run.host[:num_blocks], run.host[num_blocks:]
        self._share_transfers(run, front)
        return front

    def _share_transfers(self, run: HostRun, front: HostRun) -> None:
        """A transfer of a run is one of its beginning too, which was cut off."""
        front.write, front.brought_by = run.write, run.brought_by
        if run.write is not None:
            run.write.runs.append(front)
        front.loads = list(run.loads)
        for load in run.loads:
            load.pinned.append(front)

    def _offer(self, run: Run) -> None:
        assert isinstance(run, HostRun), "a run of this tree"
        if self._is_evictable(run):
            self._leaves.offer(run)
        elif self._is_host_leaf(run):
            self._below.offer(run)

    def _is_evictable(self, run: Run) -> bool:
        """True if it is a leaf of what is on the device."""
        assert isinstance(run, HostRun), "a run of this tree"
        is_free = not run.locks and run.parent is not None
        return is_free and not run.num_on_device and run.on_device

    def _is_host_leaf(self, run: Run) -> bool:
        """True if the host alone has it, and nothing is behind it."""
        assert isinstance(run, HostRun), "a run of this tree"
        is_free = not (run.locks or run.loads or run.children) and run.parent is not None
        return is_free and not run.blocks and bool(run.host)

    def __iter__(self) -> Iterator[HostRun]:
        return super().__iter__()  # type: ignore[return-value]

    def check(self) -> None:
        runs = list(self)
        for run in runs:
            parent = run.parent
            assert isinstance(parent, HostRun), "a run without a parent"
            assert parent.children.get(run.key[0]) is run, "a lost run"
            assert parent is self.root or parent.locks >= run.locks >= run.num_moving, "a lost lock"
            assert run.blocks or run.host, "a run that is stored nowhere"
            assert len(run.blocks) in (0, len(run.key)), "contents and blocks differ"
            assert len(run.host) in (0, len(run.key)), "contents and the host's blocks differ"
            assert not run.blocks or parent is self.root or parent.blocks, "a gap on the device"
            children = [child for child in run.children.values() if child.blocks]
            assert run.num_on_device == len(children), "children are miscounted"
        self._check_counts(runs)

    def _check_counts(self, runs: list[HostRun]) -> None:
        evictable = sum(len(run.blocks) for run in runs if not run.locks)
        assert evictable == self.num_evictable, "evictable blocks are miscounted"
        moving = sum(len(run.blocks) for run in runs if run.is_moving)
        assert moving == self.num_moving, "blocks of transfers are miscounted"
        blocks = [block for run in runs for block in run.blocks]
        assert len(blocks) == len(set(blocks)), "two runs have one block"
        used = sorted([*self.host.free, *(block for run in runs for block in run.host)])
        assert used == list(range(self.host.num_blocks)), "blocks of the host were lost"
