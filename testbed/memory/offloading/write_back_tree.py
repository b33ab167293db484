"""The tree of runs that are written to the host when they leave the device (write_back)."""

from testbed.memory.offloading.host_tree import HostRun, HostTree
from testbed.memory.radix.strategies import Strategy, lru
from testbed.memory.radix.tree import Run


class WriteBackTree(HostTree):
    """Writes a run to the host when it leaves the device, which waits for that (write_back).

    The host makes room by copies of what the device has, and only then by its leaves. Blocks that
    the host has no room for are lost, and all behind them. No publication is counted.

    Attributes:
        written: (device, host) blocks of such writes, which the next iteration waits for.
    """

    def __init__(self, num_blocks: int, strategy: Strategy = lru) -> None:
        super().__init__(num_blocks, 0, strategy)
        self.written: list[tuple[int, int]] = []
        self._doubled: dict[HostRun, None] = {}  # in the order in which they came; some have left

    def _publish(self, run: HostRun, priority: int, *, is_new: bool) -> None:
        run.priority = max(run.priority, priority)
        self._offer(run)

    def _restore(self, run: HostRun, blocks: list[int]) -> None:
        super()._restore(run, blocks)
        self._note_double(run)

    def _brought(self, run: HostRun) -> None:
        super()._brought(run)
        self._note_double(run)

    def _split(self, run: Run, num_blocks: int) -> Run:
        front = super()._split(run, num_blocks)
        assert isinstance(front, HostRun)
        self._note_double(front)
        return front

    def _note_double(self, run: HostRun) -> None:
        if run.blocks and run.host and run.brought_by is None:
            self._doubled.setdefault(run)
        else:
            self._doubled.pop(run, None)

    def _give_up(self, leaf: Run) -> list[int]:
        assert isinstance(leaf, HostRun), "a run of this tree"
        if not leaf.host and not self._write(leaf):
            return self._drop_all(leaf)
        return self._demote(leaf)

    def _write(self, run: HostRun) -> bool:
        """Write a run at once, if the host has room for it."""
        if not self._ensure_room(len(run.key)):
            return False
        self._take_host(run)
        self.written += zip(run.blocks, run.host, strict=True)
        self._note_double(run)
        return True

    def _drop_all(self, run: HostRun) -> list[int]:
        for child in list(run.children.values()):
            assert isinstance(child, HostRun), "a run of this tree"
            self._drop_all(child)
        return self.drop(run)

    def drop(self, leaf: Run) -> list[int]:
        assert isinstance(leaf, HostRun), "a run of this tree"
        self._doubled.pop(leaf, None)
        return super().drop(leaf)

    def _evict_below(self, num_blocks: int, freed: int = 0) -> int:
        """Give up copies of what the device has: first of what does not leave it soon."""
        gone: list[HostRun] = []
        for spares_leaves in (True, False):
            for run in self._doubled:
                if freed >= num_blocks:
                    break
                if not (run.blocks and run.host):
                    gone.append(run)
                elif not (spares_leaves and self._is_evictable(run)) and self._may_lose(run):
                    freed += len(run.host)
                    self._free_host(run)
                    gone.append(run)
        for run in gone:
            self._doubled.pop(run, None)
        return super()._evict_below(num_blocks, freed)

    def _may_lose(self, run: HostRun) -> bool:
        return run.brought_by is None and not run.loads
