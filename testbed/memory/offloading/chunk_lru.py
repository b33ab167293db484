"""The local CPU cache of LMCache: chunks of equal size, the least recently used first to be
evicted.
"""

from collections.abc import Sequence

from testbed.core.slots import Extent, NonSequenceSlots
from testbed.memory.prefix_cache.prefix_index import Key
from testbed.memory.tiers.lower_tier import Pins


class ChunkLru:
    """Chunks by the keys of what they store (LMCache 0.5.6, LocalCPUBackend with LRUCachePolicy).

    A chunk is as new as its storing, so that the beginning of a prompt is evicted first, or as the
    last lookup that found it, by which the beginning is the newest. Chunks that a lookup has found
    are not evicted until `unpin`.
    """

    def __init__(self, name: str, num_chunks: int, chunk_size: int) -> None:
        self.name = name
        self.num_chunks = num_chunks
        self.chunk_size = chunk_size
        self.chunks: dict[Key, int] = {}  # the next one to be evicted first
        self.evicted = 0
        self._free = list(range(num_chunks))[::-1]
        self._pins = Pins[Key]()

    def look_up(self, keys: Sequence[Key]) -> list[Key]:
        """The leading keys that are here, pinned, and the newest from now on."""
        found: list[Key] = []
        for key in keys:
            if key not in self.chunks:
                break
            found.append(key)
        for key in reversed(found):
            self.chunks[key] = self.chunks.pop(key)
        self._pins.add(found)
        return found

    def unpin(self, keys: Sequence[Key]) -> None:
        """Undo one pin of each."""
        self._pins.drop(keys)

    def store(self, keys: Sequence[Key]) -> list[tuple[int, int]]:
        """Store chunks in order until there is no room; (index in keys, chunk) of those that were
        not here. One that was takes room meanwhile too, by an eviction if need be.
        """
        taken: list[int] = []
        for _ in keys:
            if not self._free and not self._evict():
                break
            taken.append(self._free.pop())
        stored: list[tuple[int, int]] = []
        for i, (key, chunk) in enumerate(zip(keys, taken, strict=False)):
            if key in self.chunks:
                self._free.append(chunk)
            else:
                self.chunks[key] = chunk
                stored.append((i, chunk))
        return stored

    def slots(self) -> NonSequenceSlots:
        """The chunks that it stores."""
        size = self.chunk_size
        extents = [Extent(chunk * size, size) for chunk in self.chunks.values()]
        return NonSequenceSlots(cached=tuple(extents))

    def check(self) -> None:
        """Raise AssertionError if chunks were lost, or are pinned without being here."""
        used = sorted([*self.chunks.values(), *self._free])
        assert used == list(range(self.num_chunks)), f"chunks of the {self.name} were lost"
        assert self._pins.keys() <= self.chunks.keys(), f"the {self.name} pins what is not here"

    def _evict(self) -> bool:
        """Evict the oldest chunk that is not pinned; whether there is one."""
        victim = next((key for key in self.chunks if key not in self._pins), None)
        if victim is None:
            return False
        self._free.append(self.chunks.pop(victim))
        self.evicted += 1
        return True
