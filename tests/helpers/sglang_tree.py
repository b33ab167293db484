"""The radix tree of the SGLang that is installed, without a scheduler and a pool; pages of 1."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from testbed.experiments.real.lockstep.sglang_installation import Options, make_scheduler

SIZE = 1 << 20


class TreeOfSGLang:
    """SGLang's own tree with one of its eviction strategies; a block is one token."""

    def __init__(self, strategy: str, config: Mapping[str, int] | None = None) -> None:
        options = Options(
            total_tokens=SIZE,
            page_size=1,
            max_running_requests=1,
            max_prefill_tokens=SIZE,
            context_length=SIZE,
            radix_eviction_policy=strategy,
            radix_eviction_policy_config=config,
        )
        scheduler = make_scheduler(options)
        self._freed: list[int] = []
        self._tree = scheduler.tree_cache
        scheduler.token_to_kv_pool_allocator.free = self._note

    def insert(self, key: Sequence[int], blocks: Sequence[int], priority: int) -> int:
        """Store; how many of the first blocks were stored before."""
        import torch
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams

        value = torch.tensor(list(blocks), dtype=torch.int64)
        params = InsertParams(key=_key(key), value=value, priority=priority)
        return int(self._tree.insert(params).prefix_len)

    def match(self, key: Sequence[int]) -> int:
        """The number of the first blocks that are stored; counts as a use of them."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        return int(self._tree.match_prefix(MatchPrefixParams(key=_key(key))).device_prefix_len)

    def evict(self, num_blocks: int) -> list[int]:
        """The nodes that go, for at least so many blocks."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        self._freed = []
        self._tree.evict(EvictParams(num_tokens=num_blocks))
        return self._freed

    def _note(self, indices: Any, *others: Any, **named: Any) -> None:
        self._freed += indices.tolist()


def _key(tokens: Sequence[int]) -> Any:
    from sglang.srt.mem_cache.radix_cache import RadixKey

    return RadixKey(token_ids=array("q", tokens))
