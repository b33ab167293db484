"""Pages that sequences give back: they are free, or findable until evicted."""

from collections import Counter
from collections.abc import Mapping
from itertools import chain, islice

from testbed.core.sequence import Batch, Sequence
from testbed.core.slots import CacheHit, Keep
from testbed.memory.groups.cached_contents import PromptContents
from testbed.memory.groups.checkpoints import EachSpacing
from testbed.memory.groups.page_rules import PagePool, Pages
from testbed.memory.groups.page_table import NONE, GroupIndex, Hit, PageOf, PageTable
from testbed.memory.prefix_cache.prefix_caching import CacheCounts
from testbed.memory.prefix_cache.prefix_index import Node


class NoCache:
    """Pages that a sequence gives back are free; no sequence begins with another's."""

    def __init__(self, pages: PagePool) -> None:
        self.pages = pages
        self.holders: dict[PageOf, int] = {}  # of pages that several sequences hold
        self.nothing = Hit(0, pages.nothing, [0] * len(pages.columns))

    def hits(self, seq: Sequence, num_tokens: int, found: CacheHit | None) -> list[Hit]:
        """Hits with which an admission for num_tokens tokens may begin, the best first."""
        return [self.nothing]

    def must_wait(self, hit: Hit) -> bool:
        """True if a sequence can begin with this hit in the next iteration at the earliest."""
        return False

    def hold(self, seq: Sequence, hit: Hit) -> None:
        """`seq` holds these pages too."""

    def make_free(self, needed: list[int]) -> None:
        """Make the needed pages of each column free; `fits` of the pool has confirmed that this is
        possible.
        """

    def dropping(self, table: PageTable) -> None:
        """The sequence is about to give back what its next tokens do not read."""

    def releasing(self, table: PageTable, keep: Keep) -> None:
        """The sequence is about to give back all its pages."""

    def put(self, column: int, pages: list[int]) -> None:
        """One sequence less holds these pages."""
        self.pages.put(column, pages)

    def ends_refusals(self, batch: Batch) -> bool:
        """True if the extension of these sequences may let in what was refused before."""
        return False

    def counters(self) -> Mapping[str, float]:
        """Its counts by name."""
        return {}

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""

    def unshared(self, unread: Pages) -> Pages:
        """The pages that no sequence holds once those that hold them here have returned
        them.
        """
        if not self.holders:
            return unread
        counts = Counter((i, page) for i, pages in enumerate(unread) for page in pages)
        alone = [
            page_of for page_of, count in counts.items() if count == self.holders.get(page_of, 1)
        ]
        return [[page for column, page in alone if column == i] for i in range(len(unread))]


class PageCache(NoCache):
    """Pages whose content is known stay findable until they are evicted, the least recently used
    first.

    contents: what is known of the sequences' blocks. checkpoints: which of them stay. num_dropped:
    blocks at the end of a hit that are computed again. An `extend` that evicts ends refusals if
    eviction_admits: a prompt may need fewer pages when its hit is gone.
    """

    def __init__(
        self,
        pages: PagePool,
        contents: PromptContents,
        *,
        checkpoints: EachSpacing,
        num_dropped: int,
        eviction_admits: bool,
    ) -> None:
        super().__init__(pages)
        self.index = GroupIndex(pages)
        self.contents = contents
        self.counts = CacheCounts()
        self.num_evictions = 0
        # Pages of states that a sequence computes in this iteration, by its id: no kernel waits
        self.unready = dict[int, list[int]]()
        self.checkpoints = checkpoints
        self._num_dropped = num_dropped
        self._eviction_admits = eviction_admits
        self._has_evicted = False  # since the last extend
        self._reads_all = any(column.reads_all for column in pages.columns)

    def publish(self, table: PageTable, num_blocks: int) -> None:
        """The pages of the first blocks are findable by content."""
        seq, node, size = table.seq, self.index.root, self.pages.block_size
        columns = range(len(self.pages.columns))
        self.unready.setdefault(seq.seq_id, [])
        for block, content in enumerate(islice(self.contents.of(seq, size), num_blocks)):
            node = self.index.grown(node, content)
            for i in columns:
                page = table.page_of(i, block)
                if page != NONE and self.checkpoints.keeps(table, i, block):
                    self._set_page(node, i, page, seq)
        self.index.prune(node)

    def path(self, seq: Sequence) -> list[Node]:
        """The nodes of its leading blocks of which full attention has all pages."""
        return self.index.path(self.contents.of(seq, self.pages.block_size))

    def hits(self, seq: Sequence, num_tokens: int, found: CacheHit | None) -> list[Hit]:
        """The longest hit; if it is beyond num_tokens, the longest that is not; all others that
        may need fewer pages.
        """
        size = self.pages.block_size
        path = found.path if isinstance(found, GroupHit) else self.path(seq)
        path = path[: self.contents.num_readable(seq, num_tokens, size)]
        waits = self.contents.waits_for_states
        unready = set[int]() if waits else {*chain.from_iterable(self.unready.values())}
        hits = [*self.index.hits(path[: max(len(path) - self._num_dropped, 0)], unready), 0]
        within = [hit for hit in hits if hit * size <= num_tokens]
        chosen = [hits[0], *(within[:1] if self.pages.hits_save else within)]
        return [self._hit(path, num_blocks) for num_blocks in dict.fromkeys(chosen)]

    def _hit(self, path: list[Node], num_blocks: int) -> Hit:
        end = num_blocks * self.pages.block_size
        dropped = [self.pages.first_read(i, end) for i in range(len(self.pages.columns))]
        pages = [
            [node.memo[i] for node in path[first:num_blocks]] for i, first in enumerate(dropped)
        ]
        is_longer = self._reads_all and len(path) > num_blocks
        return Hit(end, pages, dropped, len(path) * is_longer)

    def must_wait(self, hit: Hit) -> bool:
        if not self.contents.waits_for_states:
            return False
        unready = {*chain.from_iterable(self.unready.values())}
        columns = zip(self.pages.columns, hit.pages, strict=True)
        return any(pages[-1] in unready for column, pages in columns if pages and not column.width)

    def begin_plan(self) -> bool:
        """States that the iterations planned so far compute can be read from now on; whether there
        are any.
        """
        had_any = self.has_unready()
        self.unready.clear()
        return had_any

    def has_unready(self) -> bool:
        """True if states are computed by the iterations planned so far."""
        return any(self.unready.values())

    def hold(self, seq: Sequence, hit: Hit) -> None:
        size = self.pages.block_size
        self.counts.add(seq, size, hit.num_tokens // size)
        for i, pages in enumerate(hit.pages):
            for page in pages:
                if page in self.pages.queue(i):
                    self.pages.set_idle(i, page, idle=False)
                else:
                    self.holders[i, page] = self.holders.get((i, page), 1) + 1

    def make_free(self, needed: list[int]) -> None:
        while (queue := self.pages.short(needed)) is not None:
            page, column = next(iter(queue.items()))
            if page in self.index.by_page:
                self.index.forget(page)
                self.num_evictions += 1
                self._has_evicted = self._eviction_admits
            self.free_idle(column, page)

    def dropping(self, table: PageTable) -> None:
        if num_blocks := self.contents.num_returned(table.seq, table.blocks_left()):
            self.publish(table, num_blocks)

    def releasing(self, table: PageTable, keep: Keep) -> None:
        seq = table.seq
        self.contents.released(seq)
        if keep is Keep.NOTHING:
            self._unpublish(table)
        else:
            stored = seq.num_stored // self.pages.block_size
            self.publish(table, self.contents.num_returned(seq, stored))
        self.unready.pop(seq.seq_id, None)

    def put(self, column: int, pages: list[int]) -> None:
        for page in reversed(pages):  # so that the beginning of a prompt lasts the longest
            holders = self.holders.pop((column, page), 1) - 1
            if holders > 1:
                self.holders[column, page] = holders
            elif holders:
                continue
            elif page in self.index.by_page:
                self.pages.set_idle(column, page, idle=True)
            else:
                self.contents.put_uncached(self.pages, column, page)

    def ends_refusals(self, batch: Batch) -> bool:
        if not (self.unready or self._has_evicted):
            return False
        for seq in batch:
            self.unready.pop(seq.seq_id, None)
        self._has_evicted = False
        return True

    def counters(self) -> Mapping[str, float]:
        return {**self.counts.by_name(), "evictions": self.num_evictions}

    def check(self) -> None:
        self.index.check()

    def free_idle(self, column: int, page: int) -> None:
        """An idle page without findable content is free."""
        self.pages.set_idle(column, page, idle=False)
        self.pages.put(column, [page])

    def _unpublish(self, table: PageTable) -> None:
        """Makes the contents of these pages unfindable, unless another sequence holds them."""
        for column, pages in enumerate(table.pages):
            for page in pages:
                if (column, page) not in self.holders and page in self.index.by_page:
                    self.index.forget(page)

    def _set_page(self, node: Node, column: int, page: int, seq: Sequence) -> None:
        """A page of `seq` has a block's content, which a page that is held may have too. An idle
        one that has it is free then, unless copies are kept.
        """
        other = node.memo[column]
        if other != NONE and self.contents.keeps_copies:
            if page not in self.index.by_page:
                self.index.add_copy(node, column, page)
                self._note_unready(column, other, seq)  # vLLM knows states by their hash alone
            return
        if other != NONE and other not in self.pages.queue(column):
            return
        self.index.set_page(node, column, page)
        if other != NONE:
            self.free_idle(column, other)
        self._note_unready(column, page, seq)

    def _note_unready(self, column: int, page: int, seq: Sequence) -> None:
        if not self.pages.columns[column].width:
            self.unready[seq.seq_id].append(page)


class GroupHit(CacheHit):
    """The nodes of the leading blocks of a prompt of which full attention has all pages."""

    __slots__ = ("_cache", "_seq", "path")

    def __init__(self, cache: PageCache, seq: Sequence) -> None:
        self._cache = cache
        self._seq = seq
        self.path = cache.path(seq)

    def num_cached(self, num_tokens: int) -> int:
        return self._cache.hits(self._seq, num_tokens, self)[0].num_tokens
