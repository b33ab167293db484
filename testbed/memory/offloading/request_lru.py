"""The CPU cache of vLLM's offloading: whole chunks of one block, the requests least recent first to
be evicted.
"""

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from testbed.core.slots import Extent, NonSequenceSlots
from testbed.memory.prefix_cache.prefix_index import Key
from testbed.memory.tiers.lower_tier import Pins

Rank: TypeAlias = tuple[int, int]


class Request:
    """Blocks that a request has stored or read: the position of each key, and its rank in the
    cache.
    """

    __slots__ = ("rank", "seen")

    def __init__(self) -> None:
        self.rank: int | None = None
        self.seen: dict[Key, int] = {}


class RequestLru:
    """Blocks by the keys of what they store (vLLM, v1/kv_offload/cpu: CPUOffloadingManager with
    LRUCachePolicy).

    All blocks of a request share its rank while it is served, later positions first to be evicted;
    when it has ended, each gets a rank of its own, the beginning of the prompt the newest. A block
    that is written or read keeps its place and is never evicted. `arriving` are being written;
    `reads` counts the transfers that read a block.
    """

    def __init__(self, name: str, num_blocks: int, block_size: int) -> None:
        self.name = name
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.blocks: dict[Key, int] = {}
        self.arriving: set[Key] = set()
        self.reads = Pins[Key]()
        self.evicted = 0
        self._free = list(range(num_blocks))[::-1]
        self._num_ranks = 0
        self._ranks: dict[Key, Rank] = {}
        self._queue: list[tuple[Rank, Key]] = []  # a heap; entries may be out of date

    def find(self, keys: Sequence[Key]) -> tuple[int, bool]:
        """The number of leading keys that are here, and True if one of them is being written."""
        num_found, is_pending = 0, False
        for key in keys:
            if key not in self.blocks:
                break
            num_found += 1
            is_pending = is_pending or key in self.arriving
        return num_found, is_pending

    def has(self, key: Key) -> bool:
        """True if the key is here, or being written."""
        return key in self.blocks

    def read(self, keys: Sequence[Key], first: int, request: Request) -> list[int]:
        """The blocks of these keys, at positions from `first` on, which a transfer reads until
        `end_read`.
        """
        self.reads.add(keys)
        self._access({key: i for i, key in enumerate(keys, first)}, request)
        return [self.blocks[key] for key in keys]

    def end_read(self, keys: Sequence[Key]) -> None:
        """A transfer has read these keys."""
        for key in self.reads.drop(keys):
            self._push(key)

    def store(self, keys: Sequence[Key], first: int, request: Request) -> list[int] | None:
        """Blocks for those of the keys that are not here, in order, which a transfer writes until
        `stored`; None if there are too few: then none is stored.
        """
        known = {key: i for i, key in enumerate(keys, first) if key not in self.arriving}
        new = [key for key in known if key not in self.blocks]
        self._access(known, request)
        if new and not self._ensure_free(len(new), set(keys)):
            return None
        for key in new:
            self.blocks[key] = self._free.pop()
            self.arriving.add(key)
            self._ranks[key] = (self._rank_of(request), -known[key])
        return [self.blocks[key] for key in new]

    def stored(self, keys: Sequence[Key]) -> None:
        """A transfer has written these keys."""
        for key in keys:
            self.arriving.remove(key)
            self._push(key)

    def finished(self, request: Request) -> None:
        """The request has ended: what it has stored or read is the newest, its end before its
        beginning.
        """
        for key in sorted(request.seen, key=request.seen.__getitem__, reverse=True):
            if key in self.blocks:
                self._num_ranks += 1
                self._ranks[key] = (self._num_ranks, 0)
                self._push(key)
        if len(self._queue) > 2 * len(self.blocks) + 64:
            self._queue = [(self._ranks[key], key) for key in self.blocks if self._is_idle(key)]
            heapify(self._queue)

    def slots(self) -> NonSequenceSlots:
        """Slots that it stores, and those that are being written."""
        size = self.block_size
        kinds: tuple[list[Extent], list[Extent]] = ([], [])
        for key, block in self.blocks.items():
            kinds[key in self.arriving].append(Extent(block * size, size))
        return NonSequenceSlots(cached=tuple(kinds[0]), in_transit=tuple(kinds[1]))

    def check(self) -> None:
        """Raise AssertionError if blocks were lost, or are read or written without being
        here.
        """
        used = sorted([*self.blocks.values(), *self._free])
        assert used == list(range(self.num_blocks)), f"blocks of the {self.name} were lost"
        assert self.blocks.keys() == self._ranks.keys(), f"the {self.name} ranks what is not here"
        moving = self.arriving | self.reads.keys()
        assert moving <= self.blocks.keys(), f"the {self.name} reads or writes what is not here"
        idle = {(self._ranks[key], key) for key in self.blocks if self._is_idle(key)}
        assert idle <= set(self._queue), f"blocks of the {self.name} have no place in its order"

    def _is_idle(self, key: Key) -> bool:
        return key not in self.arriving and key not in self.reads

    def _access(self, positions: Mapping[Key, int], request: Request) -> None:
        """The request stores or reads these keys; each counts once."""
        new = [key for key in positions if key not in request.seen]
        rank = self._rank_of(request) if new else 0
        for key in new:
            position = request.seen[key] = positions[key]
            if key in self.blocks and self._ranks[key] < (rank, -position):
                self._ranks[key] = (rank, -position)
                self._push(key)

    def _rank_of(self, request: Request) -> int:
        if request.rank is None:
            self._num_ranks += 1
            request.rank = self._num_ranks
        return request.rank

    def _push(self, key: Key) -> None:
        if self._is_idle(key):
            heappush(self._queue, (self._ranks[key], key))

    def _ensure_free(self, needed: int, kept: set[Key]) -> bool:
        """Evict until `needed` blocks are free, but none of the kept keys; False, and no change,
        if that is impossible.
        """
        victims, aside = dict[Key, Rank](), list[tuple[Rank, Key]]()
        while len(self._free) + len(victims) < needed and self._queue:
            rank, key = entry = heappop(self._queue)
            is_current = key in self.blocks and self._ranks[key] == rank and self._is_idle(key)
            if not is_current or key in victims:
                continue
            if key in kept:
                aside.append(entry)
            else:
                victims[key] = rank
        is_enough = len(self._free) + len(victims) >= needed
        if not is_enough:
            aside += [(rank, key) for key, rank in victims.items()]
        for entry in aside:
            heappush(self._queue, entry)
        if is_enough:
            self._evict(victims)
        return is_enough

    def _evict(self, victims: dict[Key, Rank]) -> None:
        for key in victims:
            del self._ranks[key]
            self._free.append(self.blocks.pop(key))
        self.evicted += len(victims)
