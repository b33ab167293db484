"""vLLM's scheduler with LMCache's connector, and ours with policy=lmcache, on random loads; copies
are made up, and end with the step that begins them, as in LMCache.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any

from testbed.core.request import Request
from testbed.experiments.real.lockstep import lmcache_installation as lmcache
from testbed.experiments.real.lockstep import vllm_installation as vllm
from testbed.experiments.real.lockstep import vllm_offload
from testbed.experiments.real.lockstep.offload_steps import (
    Step,
    Totals,
    compare_steps,
    shortest_workload,
)
from testbed.memory.offloading.lmcache import LMCache
from testbed.memory.policy import PoolSpec
from testbed.sched.plan import Plan
from testbed.vllm.releases import Release


@dataclass(frozen=True, slots=True)
class Load:
    """A server and its requests. server: with as many host blocks as the cache's chunks have.
    chunk_blocks: blocks of a chunk. The other names are LMCache's.
    """

    server: vllm_offload.Load
    chunk_blocks: int
    save_decode_cache: bool
    min_retrieve_tokens: int

    @property
    def chunk_size(self) -> int:
        return self.chunk_blocks * self.server.block_size

    @property
    def num_chunks(self) -> int:
        return self.server.host_blocks // self.chunk_blocks


class LoadFailed(Exception):
    """LMCache does not load what it has found: a resumed request's tokens behind its prompt."""


class Ours(vllm_offload.Ours):
    """Our scheduler and policy."""

    def __init__(self, load: Load) -> None:
        self._load = load
        super().__init__(load.server)
        self._before = self._counts()

    def make_policy(self, load: vllm_offload.Load, pool: PoolSpec, release: Release) -> Any:
        return LMCache(
            pool,
            load.block_size,
            release=release,
            chunk_size=self._load.chunk_size,
            save_decode_cache=self._load.save_decode_cache,
            min_retrieve_tokens=self._load.min_retrieve_tokens,
        )

    def _counts(self) -> list[int]:
        names = ("loaded_tokens", "stored_tokens", "evicted_tokens_below")
        return [int(self.policy.counters()[name]) for name in names]

    def _decided(self, plan: Plan, number: int) -> Step:
        chunks = {chunk.group.request.request_id: chunk for chunk in plan.chunks}
        computed = {name: chunk.new for name, chunk in chunks.items()}
        if plan.decode_seqs:
            computed |= {seq.request_id: 1 for seq in self.scheduler.state.batch}
        running, before = set(self.scheduler.state.running), self._running
        found = {name: chunks[name].num_stored for name in chunks if name not in before}
        self._running, now = running, self._counts()
        loaded, stored, evicted = (b - a for a, b in zip(self._before, now, strict=True))
        self._before = now
        preempted = sorted(group.request.request_id for group in plan.preempted)
        free = (self.policy.tier.num_chunks - len(self.policy.tier.chunks)) * self._load.chunk_size
        return step_of(computed, found, loaded, stored, evicted, tuple(preempted), free)


def step_of(
    computed: dict[int, int],
    found: dict[int, int],
    loaded: int,
    stored: int,
    evicted: int,
    preempted: tuple[int, ...],
    free: int,
) -> Step:
    """A step whose loads and stores are those of all its requests."""
    return Step(
        computed,
        found,
        {-1: loaded} if loaded else {},
        {-1: stored} if stored else {},
        evicted,
        preempted,
        free,
    )


class Theirs:
    """The installed vLLM's scheduler with LMCache's connector, engine and CPU cache."""

    def __init__(self, load: Load) -> None:
        server = load.server
        self.name = f"lmcache {lmcache.installed_lmcache()}"
        options = vllm.Options(
            num_blocks=server.num_blocks + 1,  # its null block
            block_size=server.block_size,
            max_model_len=vllm_offload.MAX_LEN,
            max_num_seqs=server.max_num_seqs,
            max_num_batched_tokens=server.max_num_batched_tokens,
            scheduler_reserve_full_isl=server.fits_whole,
            caches=True,
        )
        self.scheduler = vllm.make_scheduler(options)
        self.engine = lmcache.make_engine(
            load.num_chunks,
            load.chunk_size,
            save_decode_cache=load.save_decode_cache,
            min_retrieve_tokens=load.min_retrieve_tokens,
        )
        self.connector = lmcache.make_connector(self.engine, server.block_size)
        self.scheduler.connector = self.connector
        self.backend = self.engine.storage_manager.local_cpu_backend
        self._load = load
        self._hasher = vllm.block_hasher(
            server.block_size, getattr(self.scheduler, "num_hash_lookahead_tokens", 0)
        )
        self._new = count(vllm_offload.OUTPUT)
        self._stored = self._evicted = 0
        self._watch()

    def add(self, request: Request) -> None:
        tokens = list(request.prompt_ids or ())[: request.prompt_len]
        self.scheduler.add_request(
            vllm.make_request(request.request_id, tokens, request.output_len, None, self._hasher)
        )

    def is_idle(self) -> bool:
        if self.scheduler.has_requests():
            return False
        self.close()
        return True

    def close(self) -> None:
        """End the engine's thread."""
        self.engine.storage_manager.close()

    def step(self, number: int) -> Step:
        output = self.scheduler.schedule()
        loads = [meta.load_spec for meta in output.kv_connector_metadata.requests]
        totals = {
            meta.req_id: self.scheduler.requests[meta.req_id].num_tokens
            for meta in output.kv_connector_metadata.requests
        }
        loaded = 0
        for meta, load in zip(output.kv_connector_metadata.requests, loads, strict=True):
            if load is not None and load.can_load:
                is_whole = load.lmcache_cached_tokens == totals[meta.req_id]
                loaded += load.lmcache_cached_tokens - load.vllm_cached_tokens - is_whole
        self.connector.bind_connector_metadata(output.kv_connector_metadata)
        self.connector.start_load_kv(SimpleNamespace(attn_metadata={}))
        self.connector.wait_for_save()
        self.connector.clear_connector_metadata()
        if self.connector.get_block_ids_with_load_errors():
            raise LoadFailed
        step = self._decided(output, loaded)
        self._update(output)
        return step

    def _decided(self, output: Any, loaded: int) -> Step:
        cached = output.scheduled_cached_reqs
        found = {int(new.req_id): new.num_computed_tokens for new in output.scheduled_new_reqs}
        for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if name in cached.resumed_req_ids:
                found[int(name)] = computed
        size = self._load.chunk_size
        stored, evicted, self._stored, self._evicted = self._stored, self._evicted, 0, 0
        free = (self._load.num_chunks - len(self.backend.hot_cache)) * size
        return step_of(
            {int(name): tokens for name, tokens in output.num_scheduled_tokens.items()},
            found,
            loaded,
            stored * size,
            evicted * size,
            tuple(sorted(map(int, output.preempted_req_ids or ()))),
            free,
        )

    def _update(self, output: Any) -> None:
        from vllm.v1.outputs import ModelRunnerOutput

        names, requests = list(output.num_scheduled_tokens), self.scheduler.requests
        sampled = [[] if requests[name].is_prefill_chunk else [next(self._new)] for name in names]
        self.scheduler.update_from_output(
            output, ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)
        )

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
    if server.max_num_seqs > 1:  # what a preempted request finds of its answer fails to load
        return Load(server, chunk_blocks, False, 0)
    least = random.choice([0, 0, 3 * server.block_size])
    return Load(server, chunk_blocks, random.random() < 0.7, least)


def check_lmcache(number: int, seed: int, num_requests: int) -> Iterator[str]:
    """Compare `number` random loads; lines of a report, the last of which names the first
    difference if there is one.
    """
    totals, num_failed = Totals(), 0
    for i in range(number):
        load = draw(Random(f"lmcache/{seed}/{i}"), num_requests)

        def make(load: Load = load) -> tuple[Ours, Theirs]:
            return Ours(load), Theirs(load)

        try:
            is_different = compare_steps(make, load.server.requests, totals)
        except LoadFailed:
            num_failed += 1
            continue
        if is_different:
            shown = vllm_offload.shown(load.server)
            yield (
                f"seed {seed}, load {i}: {shown}, chunk_size={load.chunk_size}, "
                f"save_decode_cache={load.save_decode_cache}, "
                f"min_retrieve_tokens={load.min_retrieve_tokens}"
            )
            yield from shortest_workload(make, load.server.requests)
            return
    yield (
        f"lmcache {lmcache.installed_lmcache()} in vllm {vllm.installed_release()}: "
        f"{totals.steps:,} steps of {number - num_failed} loads are equal"
        f"{f' ({num_failed} failed to load)' if num_failed else ''}; "
        f"tokens: {totals.computed:,} computed, {totals.found:,} found, {totals.loaded:,} loaded, "
        f"{totals.stored:,} stored, {totals.evicted:,} evicted below; "
        f"{totals.preempted:,} preemptions"
    )
