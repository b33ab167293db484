"""vLLM's scheduler with LMCache's connector, and ours with policy=lmcache, on random loads; copies
are made up, and end with the step that begins them, as in LMCache.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from random import Random
from types import SimpleNamespace
from typing import Any

from testbed.experiments.real.lockstep import lmcache_installation as lmcache
from testbed.experiments.real.lockstep import vllm_offload
from testbed.experiments.real.lockstep.offload_steps import LoadFailed, Step, check_loads
from testbed.experiments.real.lockstep.vllm_installation import installed_release
from testbed.memory.offloading.lmcache import LMCache
from testbed.memory.policy import MemoryPolicy, PoolSpec
from testbed.sched.plan import Plan
from testbed.vllm.releases import Release

COUNTERS = ("loaded_tokens", "stored_tokens", "evicted_tokens_below")


@dataclass(frozen=True, slots=True)
class Load(vllm_offload.Load):
    """A server with as many host blocks as the cache's chunks have. chunk_blocks: blocks of a
    chunk. The other names are LMCache's.
    """

    chunk_blocks: int = 1
    save_decode_cache: bool = False
    min_retrieve_tokens: int = 0

    @property
    def chunk_size(self) -> int:
        return self.chunk_blocks * self.block_size

    @property
    def num_chunks(self) -> int:
        return self.host_blocks // self.chunk_blocks

    def policy(self, pool: PoolSpec, release: Release) -> MemoryPolicy:
        return LMCache(
            pool,
            self.block_size,
            release=release,
            chunk_size=self.chunk_size,
            save_decode_cache=self.save_decode_cache,
            min_retrieve_tokens=self.min_retrieve_tokens,
        )


class Ours(vllm_offload.Ours):
    """Our scheduler and policy."""

    def __init__(self, load: Load) -> None:
        self._chunk_size = load.chunk_size
        super().__init__(load)

    def counts(self) -> list[int]:
        return [int(self.policy.counters()[name]) for name in COUNTERS]

    def moved(self, step: Step, plan: Plan, number: int) -> Step:
        tier = self.policy.tier
        free = (tier.num_chunks - len(tier.chunks)) * self._chunk_size
        return step.with_sums(self.growth(), free)


class Theirs(vllm_offload.TheirSteps):
    """The installed vLLM's scheduler with LMCache's connector, engine and CPU cache."""

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self.name = f"lmcache {lmcache.installed_lmcache()} in {self.name}"
        self._size, self._num_chunks = load.chunk_size, load.num_chunks
        self.engine = lmcache.make_engine(
            load.num_chunks,
            load.chunk_size,
            save_decode_cache=load.save_decode_cache,
            min_retrieve_tokens=load.min_retrieve_tokens,
        )
        self.connector = lmcache.make_connector(self.engine, load.block_size)
        self.scheduler.connector = self.connector
        self.backend = self.engine.storage_manager.local_cpu_backend
        self._stored = self._evicted = 0
        self._watch()

    def is_idle(self) -> bool:
        is_idle = super().is_idle()
        if is_idle:
            self.engine.storage_manager.close()  # ends the engine's thread
        return is_idle

    def step(self, number: int) -> Step:
        output = self.scheduler.schedule()
        loaded = sum(map(self._loaded, output.kv_connector_metadata.requests))
        self.connector.bind_connector_metadata(output.kv_connector_metadata)
        self.connector.start_load_kv(SimpleNamespace(attn_metadata={}))
        self.connector.wait_for_save()
        self.connector.clear_connector_metadata()
        if self.connector.get_block_ids_with_load_errors():  # of a resumed request, behind a prompt
            raise LoadFailed
        size, free = self._size, self._num_chunks - len(self.backend.hot_cache)
        sums = loaded, size * self._stored, size * self._evicted
        self._stored = self._evicted = 0
        step = self.scheduled(output).with_sums(sums, size * free)
        self.update(output, self.sampling(output))
        return step

    def _loaded(self, meta: Any) -> int:
        """Tokens that a request's metadata lets the worker load."""
        load = meta.load_spec
        if load is None or not load.can_load:
            return 0
        is_whole = load.lmcache_cached_tokens == self.scheduler.requests[meta.req_id].num_tokens
        return int(load.lmcache_cached_tokens - load.vllm_cached_tokens - is_whole)

    def _watch(self) -> None:
        """Count chunks that come into the cache and leave it."""
        backend = self.backend
        put, remove = backend.submit_put_task, backend.batched_remove

        def puts(key: Any, *arguments: Any, **options: Any) -> Any:
            self._stored += key not in backend.hot_cache
            return put(key, *arguments, **options)

        def removes(keys: Any, *arguments: Any, **options: Any) -> Any:
            self._evicted += len(keys)
            return remove(keys, *arguments, **options)

        backend.submit_put_task, backend.batched_remove = puts, removes


def draw(random: Random, num_requests: int) -> Load:
    """A random server, and requests that share beginnings with each other."""
    server = replace(vllm_offload.draw(random, num_requests), num_steps=0)
    chunk_blocks = random.choice([1, 2, 4])
    chunks = max(round(server.num_blocks * random.uniform(0.5, 4) / chunk_blocks), 1)
    server = replace(server, host_blocks=chunks * chunk_blocks)
    values = {each.name: getattr(server, each.name) for each in fields(server)}
    load = Load(**values, chunk_blocks=chunk_blocks)
    if server.max_num_seqs > 1:  # what a preempted request finds of its answer fails to load
        return load
    least = random.choice([0, 0, 3 * server.block_size])
    return replace(load, save_decode_cache=random.random() < 0.7, min_retrieve_tokens=least)


def check_lmcache(number: int, seed: int, num_requests: int) -> Iterator[str]:
    """Compare `number` random loads; see `check_loads`."""
    name = f"lmcache {lmcache.installed_lmcache()} in vllm {installed_release()}"
    loads = (draw(Random(f"lmcache/{seed}/{i}"), num_requests) for i in range(number))
    return check_loads(name, loads, Ours, Theirs)
