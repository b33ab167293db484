"""vLLM's scheduler with its OffloadingConnector, and ours with policy=vllm_offloading, on random
loads; copies are made up.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.experiments.real.lockstep import sides
from testbed.experiments.real.lockstep import vllm_installation as vllm
from testbed.experiments.real.lockstep.offload_steps import (
    OurSteps,
    Step,
    check_loads,
    draw_ids,
    draw_requests,
)
from testbed.memory.offloading.vllm import VllmOffloading
from testbed.memory.policy import MemoryPolicy, PoolSpec, Tier
from testbed.sched.plan import Plan
from testbed.sched.preemption import Recompute
from testbed.sched.vllm_v1 import VllmV1
from testbed.vllm.releases import Release, nearest_release

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
    requests: tuple[Request, ...] = field(default=(), repr=False)

    def policy(self, pool: PoolSpec, release: Release) -> MemoryPolicy:
        """Our policy of its caches."""
        return VllmOffloading(
            pool, self.block_size, release=release, offload_prompt_only=self.prompt_only
        )


class Ours(OurSteps):
    """Our scheduler and policy."""

    def __init__(self, load: Load) -> None:
        release, size = nearest_release(vllm.installed_release()), load.block_size
        pool = PoolSpec(load.num_blocks * size, MAX_LEN, (Tier("dram", load.host_blocks * size),))
        scheduler = VllmV1(
            load.policy(pool, release),
            Recompute(),
            long_prefill_token_threshold=0,
            scheduler_reserve_full_isl=load.fits_whole,
            release=release,
            max_num_seqs=load.max_num_seqs,
            max_num_batched_tokens=load.max_num_batched_tokens,
        )
        super().__init__(scheduler, load.num_steps)
        self._running = set[int]()

    def counts(self) -> list[int]:
        return [int(self.policy.counters()["evicted_below"]) * self.policy.block_size]

    def decided(self, plan: Plan, number: int) -> Step:
        running, before = set(self.scheduler.state.running), self._running
        self._running, step = running, super().decided(plan, number)
        found = {name: tokens for name, tokens in step.found.items() if name not in before}
        return self.moved(step._replace(found=found), plan, number)

    def moved(self, step: Step, plan: Plan, number: int) -> Step:
        """The step with what the plan moves, of which this side notes when it lands."""
        loaded, stored = dict[int, int](), dict[int, int]()
        for move_id, move in (pair for ops in plan.ops for pair in ops.background):
            is_load = move.source == "dram"
            self.due[move_id] = number + 1 + self.num_steps + (not is_load)
            into = loaded if is_load else stored
            into[self.policy.request_of(move_id)] = sum(copy.length for copy in move.copies)
        (evicted,) = self.growth()
        return step._replace(loaded=loaded, stored=stored, evicted=evicted)


class TheirSteps(sides.Theirs):
    """The installed vLLM's scheduler. connector: see `make_scheduler`."""

    def __init__(self, load: Load, connector: Mapping[str, Any] | None = None) -> None:
        options = vllm.Options(
            num_blocks=load.num_blocks + 1,  # its null block
            block_size=load.block_size,
            max_model_len=MAX_LEN,
            max_num_seqs=load.max_num_seqs,
            max_num_batched_tokens=load.max_num_batched_tokens,
            scheduler_reserve_full_isl=load.fits_whole,
            caches=True,
        )
        super().__init__(options, offloading=connector)

    def is_idle(self) -> bool:
        return not self.scheduler.has_requests()

    def scheduled(self, output: Any) -> Step:
        """The step of vLLM's output, without what is moved."""
        cached = output.scheduled_cached_reqs
        found = {int(new.req_id): new.num_computed_tokens for new in output.scheduled_new_reqs}
        for name, num_stored in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if name in cached.resumed_req_ids:
                found[int(name)] = num_stored
        computed = {int(name): tokens for name, tokens in output.num_scheduled_tokens.items()}
        preempted = sorted(map(int, output.preempted_req_ids or ()))
        return Step(computed, found, preempted=tuple(preempted))


class Theirs(TheirSteps):
    """The installed vLLM's scheduler, connector and CPU cache."""

    def __init__(self, load: Load) -> None:
        of_cache = {"host_blocks": load.host_blocks, "offload_prompt_only": load.prompt_only}
        super().__init__(load, of_cache)
        self._num_steps = load.num_steps
        self.connector = self.scheduler.connector.connector_scheduler
        self._due: dict[int, int] = {}
        self._of: dict[int, Any] = {}
        self._evicted = 0
        self._ended = list[str]()
        self._watch()

    def is_idle(self) -> bool:
        return super().is_idle() and not self._ended

    def step(self, number: int) -> Step:
        output = self.scheduler.schedule()
        meta, size = output.kv_connector_metadata, self.options.block_size
        for job_id, job in (*meta.load_jobs.items(), *meta.store_jobs.items()):
            is_store = job_id in meta.store_jobs
            self._due[job_id] = number + self._num_steps + is_store
            self._of[job_id] = job
        for job_id in meta.jobs_to_flush or ():
            self._due[job_id] = number
        evicted, self._evicted = self._evicted, 0
        loads, stores = meta.load_jobs.values(), meta.store_jobs.values()
        step = self.scheduled(output)._replace(
            loaded={int(job.req_id): len(job.dst_spec.block_ids) * size for job in loads},
            stored={int(job.req_id): len(job.src_spec.block_ids) * size for job in stores},
            evicted=evicted * size,
        )
        self.update(output, self.sampling(output), self._moved(number))
        return step

    def _moved(self, number: int) -> Any:
        """The transfers that end with this step."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
            OffloadingWorkerMetadata,
        )
        from vllm.v1.outputs import KVConnectorOutput

        loads, report = set[str](), OffloadingWorkerMetadata()
        for job_id in [job_id for job_id, due in self._due.items() if due <= number]:
            del self._due[job_id]
            job = self._of.pop(job_id)
            report.mark_completed(job_id)
            if not hasattr(job.src_spec, "group_sizes"):  # a load
                loads.add(job.req_id)
        return KVConnectorOutput(finished_recving=loads, kv_connector_worker_meta=report)

    def _watch(self) -> None:
        """Count evictions, and serve requests that have ended in the order in which they did: the
        order of vLLM's set of names changes from process to process.
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


def draw(random: Random, num_requests: int) -> Load:
    """A random server, and requests that share beginnings with each other."""
    size = random.choice([4, 4, 16])
    num_blocks = random.randint(5, 100)
    budget = random.choice([2 * size, 4 * size, 16 * size, 2048])
    load = Load(
        num_blocks=num_blocks,
        max_num_seqs=min(random.choice([1, 2, 4, 8]), budget),
        host_blocks=max(round(num_blocks * random.uniform(0.5, 4)), 1),
        block_size=size,
        max_num_batched_tokens=budget,
        fits_whole=random.random() < 0.7,
        prompt_only=random.random() < 0.6,
        num_steps=random.randint(0, 10),
    )
    pool = num_blocks * size
    stories = [draw_ids(random, pool) for _ in range(4)]
    requests = draw_requests(random, num_requests, stories, min(pool, MAX_LEN), size)
    return replace(load, requests=tuple(requests))


def check_offloading(number: int, seed: int, num_requests: int) -> Iterator[str]:
    """Compare `number` random loads; see `check_loads`. Raises InputError for a release whose
    offloading is not modelled.
    """
    name = f"vllm {vllm.installed_release()}"
    if not nearest_release(vllm.installed_release()).offloads_by_request:
        raise InputError(
            key="--offload",
            problem=f"{name} stores and evicts otherwise: not modelled",
            remedy="install vllm 0.33",
        )
    loads = (draw(Random(f"offload/{seed}/{i}"), num_requests) for i in range(number))
    return check_loads(name, loads, Ours, Theirs)
