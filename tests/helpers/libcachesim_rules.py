"""Orders of libcachesim 0.3.5 that differ from those that this package ships: GDSF, LIRS and
W-TinyLFU, on single blocks. Each difference is a rule that a name here states.
"""

import heapq
from collections import OrderedDict
from math import ceil, log


def gdsf_hits(accesses, size, newcomer_competes):
    """Whether each access is a hit. newcomer_competes: a block is taken in before the victim is
    chosen, with the floor of before, so that it may be the victim itself (libcachesim); else the
    victim goes first, and its worth is the floor of the newcomer (the paper, and this package).
    """
    floor, worth, uses, heap, found = 0, {}, {}, [], []

    def evict():
        while True:
            lowest, time, block = heapq.heappop(heap)
            if worth.get(block) == (lowest, time):
                del worth[block]
                return lowest

    for time, block in enumerate(accesses):
        found.append(int(block in worth))
        if block not in worth:
            uses[block] = 0
            if len(worth) == size and not newcomer_competes:
                floor = evict()
        uses[block] += 1
        worth[block] = floor + uses[block], time
        heapq.heappush(heap, (*worth[block], block))
        if len(worth) > size:
            floor = evict()
    return found


class LirsOfLibcachesim:
    """LIRS with a stack of low, high and evicted blocks, and a queue of the high ones in the cache.

    demotes_at_hits: a hit of a block of the queue that is not in the stack makes the lowest low
    block high, whose place in the queue evicts another block (libcachesim).
    """

    def __init__(self, size, demotes_at_hits):
        self.demotes_at_hits = demotes_at_hits
        self.size, self.most_high = size, max(1, int(0.01 * size))
        self.most_low = size - self.most_high
        self.stack = OrderedDict()  # the top last; whether each block is low
        self.queue, self.evicted = OrderedDict(), OrderedDict()
        self.num_low = 0

    def access(self, block):
        """Whether the access is a hit."""
        in_stack, in_queue = block in self.stack, block in self.queue
        is_evicted = block in self.evicted
        if in_stack:
            self.stack.move_to_end(block)
        if in_stack and self.stack[block]:
            self.prune()
        elif in_stack:
            self.queue.pop(block, None)
            if is_evicted:
                self.make_room()
                self.evicted.pop(block, None)
            self.make_low(block)
        elif in_queue:
            self.queue.move_to_end(block)
            if self.demotes_at_hits:
                self.demote(self.most_low - 1)
            self.stack[block] = False
        else:
            self.enter(block)
        self.limit_stack()
        return int((in_stack and not is_evicted) or in_queue)

    def enter(self, block):
        """A block that neither stack nor queue has."""
        if self.num_low < self.most_low:
            self.num_low += 1
            self.stack[block] = True
            return
        self.make_room()
        self.stack[block] = False
        self.queue[block] = None

    def make_room(self):
        """The queue has a free place, if no low block has one."""
        while self.num_low >= self.most_low and len(self.queue) >= self.most_high:
            self.evict_high()

    def make_low(self, block):
        self.demote(self.most_low - 1)
        self.stack[block] = True
        self.num_low += 1

    def demote(self, most):
        """The lowest low blocks become high until so many are low."""
        while self.num_low > most:
            lowest, _ = self.stack.popitem(last=False)
            self.num_low -= 1
            while len(self.queue) >= self.most_high:
                self.evict_high()
            self.queue[lowest] = None
            self.prune()

    def evict_high(self):
        block, _ = self.queue.popitem(last=False)
        if block in self.stack:
            self.evicted[block] = None

    def prune(self):
        """The bottom of the stack is a low block."""
        while len(self.stack) > 1 and not self.stack[next(iter(self.stack))]:
            block, _ = self.stack.popitem(last=False)
            self.evicted.pop(block, None)

    def limit_stack(self):
        while len(self.stack) > 2 * self.size and self.evicted:
            block, _ = self.evicted.popitem(last=False)
            self.stack.pop(block, None)


class CountingFilter:
    """Counts of blocks, each in several counters of which some are another block's too: as many as
    an error of 0.001 for `entries` blocks takes. hash64: XXH64 of bytes and a seed.
    """

    SEEDS = (0x12345678, 0x12344321)

    def __init__(self, entries, hash64):
        each = -log(0.001) / log(2) ** 2
        self.hash64, self.num_hashes = hash64, ceil(log(2) * each)
        self.counters = [0] * ceil(each * entries)
        self.places = {}

    def places_of(self, block):
        if block not in self.places:
            key = (block + 1).to_bytes(8, "little")
            first, step = (self.hash64(key, seed) % 2**32 for seed in self.SEEDS)
            self.places[block] = [
                (first + turn * step) % 2**32 % len(self.counters)
                for turn in range(self.num_hashes)
            ]
        return self.places[block]

    def add(self, block):
        for place in self.places_of(block):
            self.counters[place] += 1

    def of(self, block):
        return min(self.counters[place] for place in self.places_of(block))

    def halve(self):
        self.counters = [count >> 1 for count in self.counters]


class WTinyLfuOfLibcachesim:
    """W-TinyLFU whose uses are counted at hits of the main cache, when a block comes in, and when
    it leaves the window, but not at hits of the window; they are halved after 32 hits for each
    block of the main cache. While the pool fills all blocks are the window's, and those that leave
    it fill the protected segment behind the probation.
    """

    def __init__(self, size, hash64):
        self.size, window_size = size, int(size * 0.01)
        self.main_size = size - window_size
        self.limits = [int(self.main_size / 5), int(0.8 * self.main_size)]
        self.window, self.main = OrderedDict(), [OrderedDict(), OrderedDict()]
        self.uses, self.num_hits = CountingFilter(self.main_size, hash64), 0

    def access(self, block):
        """Whether the access is a hit."""
        probation, protected = self.main
        if block in self.window:
            self.window.move_to_end(block)
            return 1
        if block in protected:
            protected.move_to_end(block)
        elif block in probation:
            self.promote(block)
        else:
            while len(self.window) + self.num_main >= self.size:
                self.evict()
            self.window[block] = None
            self.uses.add(block)
            return 0
        self.count_hit(block)
        return 1

    @property
    def num_main(self):
        return sum(map(len, self.main))

    def count_hit(self, block):
        self.uses.add(block)
        self.num_hits += 1
        if self.num_hits >= 32 * self.main_size:
            self.num_hits = 0
            self.uses.halve()

    def promote(self, block):
        probation, protected = self.main
        del probation[block]
        protected[block] = None
        while len(protected) > self.limits[1]:
            oldest, _ = protected.popitem(last=False)
            probation[oldest] = None
            while len(probation) > self.limits[0]:
                probation.popitem(last=False)

    def evict(self):
        """One block leaves; until then the window's oldest moves to the main cache."""
        evicts = False
        while not evicts:
            candidate, _ = self.window.popitem(last=False)
            evicts = self.num_main >= self.main_size
            if not evicts:
                self.enter_main(candidate)
            else:
                self.contest(candidate)
            self.uses.add(candidate)

    def contest(self, candidate):
        lowest = self.main[0] or self.main[1]
        rival = next(iter(lowest))
        if self.uses.of(candidate) > self.uses.of(rival):
            del lowest[rival]
            self.enter_main(candidate)

    def enter_main(self, block):
        """The lowest segment with room, else the probation."""
        roomy = [own for own, most in zip(self.main, self.limits, strict=True) if len(own) < most]
        (roomy or self.main)[0][block] = None


def hits_of_cache(cache, accesses):
    """Whether each access to a cache is a hit."""
    return [cache.access(block) for block in accesses]
