"""Prefix caching by blocks for a scheduler that decides about several admissions before any of them
takes slots, as SGLang's does.
"""

from collections import Counter
from collections.abc import Sequence

from testbed.core.sequence import Sequence as Seq
from testbed.core.slots import CacheHit, ceil_div
from testbed.core.units import PositiveTokens, Share
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching, PromptHit
from testbed.memory.prefix_cache.prefix_index import Node
from testbed.memory.radix.tree import RadixTree


class PinnedCaching(PrefixCaching):
    """Prefix caching with any eviction order, whose hits a scheduler may pin (PinsHits).

    A pin is a use of what it holds, also if the request is refused then: SGLang's match renews what
    it finds too. node.hits counts admissions alone.
    """

    def __init__(
        self,
        pool: PoolSpec,
        block_size: PositiveTokens = 16,
        watermark: Share = 0.0,
        eviction: EvictionOrder | None = None,
    ) -> None:
        super().__init__(pool, block_size=block_size, watermark=watermark, eviction=eviction)
        self._pins = Counter[Node]()

    def match(self, seq: Seq, num_tokens: int) -> PromptHit:
        """See PinsHits; the use is counted by `pin`."""
        hit = self.lookup(seq)
        hit.has_output = num_tokens >= seq.prompt_len
        return hit

    def pin(self, hit: CacheHit) -> None:
        """See PinsHits."""
        nodes = pinned_of(hit)
        self._tables.live += self._cache.hold(nodes) * self.block_size
        for node in nodes:
            node.hits -= 1
        self._pins.update(nodes)

    def unpin(self, hit: CacheHit) -> None:
        """See PinsHits."""
        nodes = pinned_of(hit)
        self._pins -= Counter(nodes)
        self._tables.live -= self._cache.put([node.block for node in nodes]) * self.block_size

    def refresh(self, seq: Seq, num_tokens: int) -> None:
        """See PinsHits: of the orders lru alone goes by recency."""
        if isinstance(self._cache.order, Lru):
            hit = self.match(seq, num_tokens)
            self.pin(hit)
            self.unpin(hit)

    def depth_first(self, hits: Sequence[CacheHit]) -> list[int]:
        """See PinsHits."""
        tree = RadixTree()
        found = [tuple(node.content for node in pinned_of(hit)) for hit in hits]
        return tree.depth_first(
            [tree.insert(contents, [0] * len(contents))[0] for contents in found]
        )

    def make_free(self, num_slots: int) -> None:
        """See PinsHits."""
        missing = ceil_div(num_slots, self.block_size) - len(self._pool.free)
        self._cache.evict(max(min(missing, self._cache.num_evictable), 0))

    def _ensure_free_with_hits(self, nodes: list[Node], total: int) -> None:
        if not nodes or not self._pins[nodes[-1]]:
            super()._ensure_free_with_hits(nodes, total)
            return
        self._pool.share([node.block for node in nodes])
        for node in nodes:
            node.hits += 1
        self._ensure_free(max(total - len(nodes), 0))


def pinned_of(hit: CacheHit) -> list[Node]:
    """The nodes that a hit of `match` lets a sequence read."""
    return hit.on_device(hit.prompt_len) if isinstance(hit, PromptHit) else []
