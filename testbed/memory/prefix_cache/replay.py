"""Untimed replay: what a prefix cache of a given size and eviction order finds, without scheduler
and clock.

Requests come one by one, in order of the trace. Each request looks up its prompt, references the
blocks that it finds, allocates a block for every other full block of its prompt (an eviction
provides one if none is free), publishes the new blocks, and releases all. Generated tokens and
the partial last block are not stored. Of a prompt with more full blocks than the cache has, only
the beginning is stored.

Here Belady's order is a bound for all. Blocks are of one size and every request needs all of its
blocks at once, so this is paging with sets of pages, if evicting what is needed last loses the
fewest hits even if a hit did not need its predecessors. That it does need them can only lower the
hits of other orders. It does not lower Belady's: a request that looks up a block looks up its
predecessors too, so their next use is never later, and among equals the end of a chain is evicted
first; the cache always contains whole chains from the root.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from testbed.core.garbage import rare_collections
from testbed.core.request import Rows
from testbed.memory.prefix_cache.caching_pool import CachingPool
from testbed.memory.prefix_cache.eviction.order import EvictionOrder, oracle_of
from testbed.memory.prefix_cache.hash_chain import Content, block_contents


@dataclass(frozen=True, slots=True)
class Prompt:
    """The contents of a prompt's full blocks, and its blocks with a partial last one."""

    contents: Sequence[Content]
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """Blocks found for each prompt, all blocks of all prompts, and evictions."""

    hits: list[int]
    num_blocks: int
    evictions: int

    @property
    def hit_rate(self) -> float:
        """Share of all prompt blocks, partial ones included, that were found."""
        return sum(self.hits) / self.num_blocks if self.num_blocks else 0.0


def prompts_of(rows: Rows, block_size: int) -> Iterator[Prompt]:
    for ids, tokens_per_id, prompt_len in rows.prompts():
        yield Prompt(
            block_contents(ids, tokens_per_id, prompt_len, block_size), -(-prompt_len // block_size)
        )


def replay(prompts: Iterable[Prompt], num_blocks: int | None, order: EvictionOrder) -> Replayed:
    """Serve the prompts one by one from a cache of num_blocks blocks; None: as many as there
    are.
    """
    requested = list(prompts)
    total = sum(prompt.num_blocks for prompt in requested)
    pool = CachingPool(total if num_blocks is None else num_blocks, order)
    chains = [prompt.contents[: pool.num_blocks] for prompt in requested]
    oracle = oracle_of(order)
    if oracle is not None:
        oracle.foresee(pool.index.chain(contents) for contents in chains)
    hits = []
    with rare_collections():
        for contents in chains:
            if oracle is not None:
                oracle.requested(pool.index.chain(contents))
            hits.append(serve(pool, contents))
    return Replayed(hits, total, pool.evictions)


def serve(pool: CachingPool, contents: Sequence[Content]) -> int:
    """One prompt comes and goes; returns how many of its blocks were found."""
    nodes = pool.index.match(contents)
    pool.hold(nodes)
    pool.missed(contents, nodes)
    missing = len(contents) - len(nodes)
    pool.evict(max(missing - len(pool.free), 0))
    new = pool.take(missing)
    pool.publish(nodes[-1] if nodes else pool.index.root, contents[len(nodes) :], new)
    pool.put([node.block for node in nodes] + new)
    return len(nodes)
