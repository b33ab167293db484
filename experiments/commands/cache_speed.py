"""How fast a prefix cache is: block look-ups and evictions a second on one core."""

import time
from random import Random
from typing import NamedTuple

from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.replay import Prompt, replay


class CacheSpeed(NamedTuple):
    """One measurement. A block that is not found is also published, and in a full cache evicts another."""

    lookups: int
    hits: int
    evictions: int
    cpu_s: float

    @property
    def lookups_per_second(self) -> float:
        """Look-ups a second, whatever they lead to."""
        return self.lookups / self.cpu_s

    @property
    def per_second(self) -> float:
        """Look-ups and evictions a second."""
        return (self.lookups + self.evictions) / self.cpu_s


def cache_speed(num_blocks: int = 10_000, order: type[EvictionOrder] = Lru, num_prompts: int = 50_000) -> CacheSpeed:
    """Prompts of 8 to 40 blocks, each the beginning of one of 300 stories and an end of its own, one by one."""
    prompts = branching(num_prompts, 300, Random(0))
    lookups = sum(len(prompt.contents) for prompt in prompts)
    began = time.process_time()
    result = replay(prompts, num_blocks, order())
    return CacheSpeed(lookups, sum(result.hits), result.evictions, time.process_time() - began)


def branching(num_prompts: int, num_stories: int, random: Random) -> list[Prompt]:
    """Prompts that share their beginnings with others."""
    prompts = []
    for i in range(num_prompts):
        story, length = random.randrange(num_stories), random.randrange(8, 41)
        shared = random.randrange(length)
        contents = [story * 100 + k if k < shared else -1 - 100 * i - k for k in range(length)]
        prompts.append(Prompt(contents, length))
    return prompts
