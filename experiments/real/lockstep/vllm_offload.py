"""vLLM's scheduler with its OffloadingConnector, and ours with policy=vllm_offloading, on random
loads; copies are made up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.engine.outputs import Outputs
from testbed.experiments.real.lockstep import vllm_installation as vllm
from testbed.experiments.real.lockstep.offload_steps import (
    STEP_PS,
    Step,
    Totals,
    compare_steps,
    shortest_workload,
)
from testbed.memory.offloading.vllm import VllmOffloading
from testbed.memory.policy import PoolSpec, Tier
from testbed.sched.beam_search import SyntheticBeams
from testbed.sched.preemption import Recompute
from testbed.sched.vllm_v1 import VllmV1
from testbed.vllm.releases import Release, nearest_release

OUTPUT = 10**7  # the first token that no prompt has
MAX_LEN = 2048


@dataclass(frozen=True, slots=True)
class Load:
    """A server and its requests. host_blocks: of the CPU cache. num_steps: that a transfer
    takes.
    """

    num_blocks: int
    host_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    fits_whole: bool
    prompt_only: bool
    num_steps: int
    requests: tuple[Request, ...]


class Ours:
    """Our scheduler and policy."""

    name = "testbed"

    def __init__(self, load: Load) -> None:
        size, release = load.block_size, nearest_release(vllm.installed_release())
        pool = PoolSpec(load.num_blocks * size, MAX_LEN, (Tier("dram", load.host_blocks * size),))
        self.policy = self.make_policy(load, pool, release)
        self.scheduler = VllmV1(
            self.policy,
            Recompute(),
            long_prefill_token_threshold=0,
            scheduler_reserve_full_isl=load.fits_whole,
            release=release,
            max_num_seqs=load.max_num_seqs,
            max_num_batched_tokens=load.max_num_batched_tokens,
        )
        self.outputs = Outputs(self.scheduler.state, SyntheticBeams())
        self._num_steps, self._size = load.num_steps, size
        self._due: dict[int, int] = {}  # the step before which a transfer has landed
        self._evicted = 0.0
        self._running = set[int]()

    def make_policy(self, load: Load, pool: PoolSpec, release: Release) -> Any:
        """The policy of the load over this pool."""
        return VllmOffloading(
            pool, load.block_size, release=release, offload_prompt_only=load.prompt_only
        )

    def add(self, request: Request) -> None:
        self.outputs.arrived(request)
        self.scheduler.add(request.incoming)

    def is_idle(self) -> bool:
        state = self.scheduler.state
        return not (state.num_waiting or state.running or self._due)

    def step(self, number: int) -> Step:
        for move_id in [move for move, due in self._due.items() if due <= number]:
            del self._due[move_id]
            self.policy.landed(move_id)
        plan = self.scheduler.plan()
        self.policy.check()
        self.outputs.preempted(plan)
        step = self._decided(plan, number)
        results = self.outputs.results(plan, 1)
        self.outputs.follow(plan, self.scheduler.commit(plan, 1, results))
        return step

    def _decided(self, plan: Any, number: int) -> Step:
        chunks = {chunk.group.request.request_id: chunk for chunk in plan.chunks}
        computed = {name: chunk.new for name, chunk in chunks.items()}
        if plan.decode_seqs:
            computed |= {seq.request_id: 1 for seq in self.scheduler.state.batch}
        running, before = set(self.scheduler.state.running), self._running
        found = {name: chunks[name].num_stored for name in chunks if name not in before}
        self._running = running
        loaded, stored = dict[int, int](), dict[int, int]()
        for move_id, move in (pair for ops in plan.ops for pair in ops.background):
            is_load = move.source == "dram"
            self._due[move_id] = number + 1 + self._num_steps + (not is_load)
            name = self.policy.request_of(move_id)
            into = loaded if is_load else stored
            into[name] = sum(copy.length for copy in move.copies)
        evicted = self.policy.counters()["evicted_below"]
        step = Step(
            computed,
            found,
            loaded,
            stored,
            int(evicted - self._evicted) * self._size,
            tuple(sorted(group.request.request_id for group in plan.preempted)),
        )
        self._evicted = evicted
        return step


class Theirs:
    """The installed vLLM's scheduler, connector and CPU cache."""

    def __init__(self, load: Load) -> None:
        self.name = f"vllm {vllm.installed_release()}"
        options = vllm.Options(
            num_blocks=load.num_blocks + 1,  # its null block
            block_size=load.block_size,
            max_model_len=MAX_LEN,
            max_num_seqs=load.max_num_seqs,
            max_num_batched_tokens=load.max_num_batched_tokens,
            scheduler_reserve_full_isl=load.fits_whole,
            caches=True,
        )
        self.scheduler = vllm.make_scheduler(options, offloading(load))
        self.connector = self.scheduler.connector.connector_scheduler
        self._load = load
        self._hasher = vllm.block_hasher(
            load.block_size, getattr(self.scheduler, "num_hash_lookahead_tokens", 0)
        )
        self._new = count(OUTPUT)
        self._due: dict[int, int] = {}
        self._of: dict[int, Any] = {}
        self._evicted = 0
        self._ended = list[str]()
        self._watch()

    def add(self, request: Request) -> None:
        tokens = list(request.prompt_ids or ())[: request.prompt_len]
        self.scheduler.add_request(
            vllm.make_request(request.request_id, tokens, request.output_len, None, self._hasher)
        )

    def is_idle(self) -> bool:
        return not (self.scheduler.has_requests() or self._ended)

    def step(self, number: int) -> Step:
        output = self.scheduler.schedule()
        meta = output.kv_connector_metadata
        for job_id, job in (*meta.load_jobs.items(), *meta.store_jobs.items()):
            is_store = job_id in meta.store_jobs
            self._due[job_id] = number + self._load.num_steps + is_store
            self._of[job_id] = job
        for job_id in meta.jobs_to_flush or ():
            self._due[job_id] = number
        step = self._decided(output, meta)
        self._update(output, number)
        return step

    def _decided(self, output: Any, meta: Any) -> Step:
        size = self._load.block_size
        cached = output.scheduled_cached_reqs
        found = {int(new.req_id): new.num_computed_tokens for new in output.scheduled_new_reqs}
        for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if name in cached.resumed_req_ids:
                found[int(name)] = computed
        evicted, self._evicted = self._evicted, 0
        return Step(
            {int(name): tokens for name, tokens in output.num_scheduled_tokens.items()},
            found,
            {int(job.req_id): _num_blocks(job.dst_spec) * size for job in meta.load_jobs.values()},
            {int(job.req_id): _num_blocks(job.src_spec) * size for job in meta.store_jobs.values()},
            evicted * size,
            tuple(sorted(map(int, output.preempted_req_ids or ()))),
        )

    def _update(self, output: Any, number: int) -> None:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
            OffloadingWorkerMetadata,
        )
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        ended = [job_id for job_id, due in self._due.items() if due <= number]
        loads, report = set[str](), OffloadingWorkerMetadata()
        for job_id in ended:
            del self._due[job_id]
            job = self._of.pop(job_id)
            report.mark_completed(job_id)
            if _is_load(job):
                loads.add(job.req_id)
        names = list(output.num_scheduled_tokens)
        requests = self.scheduler.requests
        sampled = [[] if requests[name].is_prefill_chunk else [next(self._new)] for name in names]
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                names,
                {name: i for i, name in enumerate(names)},
                sampled,
                kv_connector_output=KVConnectorOutput(
                    finished_recving=loads, kv_connector_worker_meta=report
                ),
            ),
        )

    def _watch(self) -> None:
        """Count evictions; serve requests that have ended in the order in which they did, where
        vLLM goes through a set of names.
        """
        prepare, build = self.connector.manager.prepare_store, self.connector.build_connector_meta
        finish = self.connector.request_finished

        def prepare_store(*arguments: Any) -> Any:
            output = prepare(*arguments)
            self._evicted += 0 if output is None else len(output.evicted_keys)
            return output

        def request_finished(request: Any, *arguments: Any) -> Any:
            self._ended.append(request.request_id)
            return finish(request, *arguments)

        def build_connector_meta(output: Any) -> Any:
            output.finished_req_ids, self._ended = self._ended, []
            return build(output)

        self.connector.manager.prepare_store = prepare_store
        self.connector.request_finished = request_finished
        self.connector.build_connector_meta = build_connector_meta


def _is_load(job: Any) -> bool:
    return not hasattr(job.src_spec, "group_sizes")


def _num_blocks(spec: Any) -> int:
    return len(spec.block_ids)


def offloading(load: Load) -> dict[str, Any]:
    """vLLM's kv_connector_extra_config for so many blocks of the lockstep's shape."""
    return {
        "host_blocks": load.host_blocks,
        "offload_prompt_only": load.prompt_only,
    }


def draw(random: Random, num_requests: int) -> Load:
    """A random server, and requests that share beginnings with each other."""
    size = random.choice([4, 4, 16])
    num_blocks = random.randint(5, 100)
    budget = random.choice([2 * size, 4 * size, 16 * size, 2048])
    seqs = min(random.choice([1, 2, 4, 8]), budget)
    return Load(
        num_blocks,
        max(round(num_blocks * random.uniform(0.5, 4)), 1),
        size,
        seqs,
        budget,
        random.random() < 0.7,
        random.random() < 0.6,
        random.randint(0, 10),
        tuple(_requests(random, num_requests, num_blocks * size, size)),
    )


def _requests(random: Random, count: int, pool: int, size: int) -> Iterator[Request]:
    stories = [[random.randrange(10**6) for _ in range(pool)] for _ in range(4)]
    gap, now = random.choice([0.5, 3, 15]), 0.0
    most = min(pool, MAX_LEN)
    for i in range(count):
        now += random.expovariate(1 / gap)
        output_len = random.choice([1, random.randint(1, max(most // 4, 1))])
        length = random.randint(1, random.choice([most // 4 + 1, most // 2 + 1, most - output_len]))
        if random.random() < 0.5:  # whole blocks
            length = max(length // size * size, 1)
        length = max(min(length, most - output_len), 1)
        shared = random.choice([0, length, random.randint(0, length)])
        own = (random.randrange(10**6) for _ in range(length - shared))
        ids = (*random.choice(stories)[:shared], *own)
        yield Request(i, round(now * STEP_PS), length, output_len, prompt_ids=ids)


def check_offloading(number: int, seed: int, num_requests: int) -> Iterator[str]:
    """Compare `number` random loads; lines of a report, the last of which names the first
    difference if there is one. Raises InputError for a release whose offloading is not modelled.
    """
    if not nearest_release(vllm.installed_release()).offloads_by_request:
        raise InputError(
            key="--offload",
            problem=f"vllm {vllm.installed_release()} stores and evicts otherwise: not modelled",
            remedy="install vllm 0.33",
        )
    totals = Totals()
    for i in range(number):
        load = draw(Random(f"offload/{seed}/{i}"), num_requests)

        def make(load: Load = load) -> tuple[Ours, Theirs]:
            return Ours(load), Theirs(load)

        if compare_steps(make, load.requests, totals):
            yield f"seed {seed}, load {i}: {load.__class__.__name__} {shown(load)}"
            yield from shortest_workload(make, load.requests)
            return
    yield (
        f"vllm {vllm.installed_release()}: {totals.steps:,} steps of {number} loads are equal; "
        f"tokens: {totals.computed:,} computed, {totals.found:,} found, {totals.loaded:,} loaded, "
        f"{totals.stored:,} stored, {totals.evicted:,} evicted below; "
        f"{totals.preempted:,} preemptions"
    )


def shown(load: Load) -> str:
    names: Sequence[str] = [name for name in load.__slots__ if name != "requests"]
    return ", ".join(f"{name}={getattr(load, name)}" for name in names)
