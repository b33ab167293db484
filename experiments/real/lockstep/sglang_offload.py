"""SGLang's scheduler with HiCache, and ours with policy=hicache, on random loads; copies are made
up.

A write takes a stated number of steps. A load ends with the iteration that waits for it, as in
SGLang (LayerDoneCounter.wait_until).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import ceil
from random import Random
from typing import Any

from testbed.core.request import Request
from testbed.engine.outputs import Outputs
from testbed.experiments.real.lockstep import sglang_installation as sglang
from testbed.experiments.real.lockstep.offload_steps import (
    STEP_PS,
    Step,
    Totals,
    compare_steps,
    shortest_workload,
)
from testbed.experiments.real.lockstep.sglang_draws import draw_config
from testbed.experiments.real.lockstep.sglang_installation import Hierarchy, Options
from testbed.memory.offloading.hicache import WRITE_POLICIES, HiCache
from testbed.memory.policy import PoolSpec, Tier
from testbed.memory.radix.strategies import STRATEGIES
from testbed.sched.beam_search import SyntheticBeams
from testbed.sched.plan import Plan, Results
from testbed.sched.preemption import Recompute
from testbed.sched.sglang import SGLang
from testbed.sched.sglang_overlap import OverlappedSGLang

OUTPUT = 10**7  # the first token that no prompt has
MAX_LEN = 4096
OF_ALL = -1  # writes are of runs, which are of no request


@dataclass(frozen=True, slots=True)
class Load:
    """A server and its requests. num_steps: that a write takes."""

    options: Options
    hierarchy: Hierarchy
    num_steps: int
    requests: tuple[Request, ...]


class Ours:
    """Our scheduler and policy."""

    name = "testbed"

    def __init__(self, load: Load) -> None:
        options, size = load.options, load.options.page_size
        below = Tier("dram", load.hierarchy.num_pages * size)
        self.policy = HiCache(
            PoolSpec(options.total_tokens, MAX_LEN, (below,)),
            size,
            options.radix_eviction_policy,
            load.hierarchy.hicache_write_policy,
            options.radix_eviction_policy_config,
        )
        self.scheduler = (OverlappedSGLang if options.overlaps else SGLang)(
            self.policy,
            Recompute(),
            max_running_requests=options.max_running_requests,
            max_prefill_tokens=options.max_prefill_tokens,
            chunked_prefill_size=options.chunked_prefill_size,
            enable_mixed_chunk=options.enable_mixed_chunk,
            schedule_policy=options.schedule_policy,
            schedule_conservativeness=options.schedule_conservativeness,
            new_token_ratio_decay_steps=options.decay_steps,
            ignore_eos=options.ignore_eos,
            context_length=options.context_length,
        )
        self.outputs = Outputs(self.scheduler.state, SyntheticBeams())
        self._num_steps = load.num_steps
        self._due: dict[int, int] = {}  # the step before which a write has landed
        self._in_flight: tuple[Plan, tuple[int, ...]] | None = None
        self._before = self._counters()

    def add(self, request: Request) -> None:
        self.outputs.arrived(request)
        self.scheduler.add(request.incoming)

    def is_idle(self) -> bool:
        state = self.scheduler.state
        return not (state.num_waiting or state.running or self._due or self._in_flight)

    def step(self, number: int) -> Step:
        for move_id in [move for move, due in self._due.items() if due <= number]:
            del self._due[move_id]
            self.policy.landed(move_id)
        plan = self.scheduler.plan()
        self.policy.check()
        self.outputs.preempted(plan)
        for transfer in (transfer for ops in plan.ops for transfer in ops.background):
            self._due[transfer.move_id] = number + 1 + self._num_steps
        step = self._decided(plan)
        self._carry_out(plan)
        self.policy.check()
        return self._with_counts(step)

    def _carry_out(self, plan: Plan) -> None:
        """With overlap, end the iteration before, and begin this one."""
        scheduler, outputs = self.scheduler, self.outputs
        if not scheduler.plans_ahead:
            results = outputs.results(plan, 1)
            outputs.follow(plan, scheduler.commit(plan, 1, results))
            return
        if self._in_flight is not None:
            before, ended = self._in_flight
            scheduler.commit(before, 1, Results(ended, {}, {}))
            self._in_flight = None
        if plan.decode_seqs or plan:
            ended = outputs.ended(plan, 1)
            outcome = scheduler.anticipate(plan, 1, ended)
            outputs.follow(plan, outcome, ended)
            self._in_flight = plan, ended

    def _decided(self, plan: Plan) -> Step:
        chunks = {chunk.group.request.request_id: chunk for chunk in plan.chunks}
        computed = {name: chunk.new for name, chunk in chunks.items()}
        if plan.decode_seqs:
            computed |= {seq.request_id: 1 for seq in self.scheduler.state.batch}
        found = {name: chunk.num_stored for name, chunk in chunks.items() if chunk.num_stored}
        preempted = sorted(group.request.request_id for group in plan.preempted)
        return Step(computed, found, {}, {}, 0, tuple(preempted))

    def _counters(self) -> tuple[int, int, int]:
        tree = self.policy.tree
        return self.policy.num_loaded, tree.num_written, tree.evicted_below

    def _with_counts(self, step: Step) -> Step:
        size, now = self.policy.block_size, self._counters()
        loaded, stored, evicted = ((b - a) * size for a, b in zip(self._before, now, strict=True))
        self._before = now
        return step._replace(
            loaded={OF_ALL: loaded} if loaded else {},
            stored={OF_ALL: stored} if stored else {},
            evicted=evicted,
            free=len(self.policy.tree.host.free) * size,
        )


class Event:
    """The event of a copy that ends before the step `due`."""

    def __init__(self, clock: "Clock", due: int) -> None:
        self._clock = clock
        self._due = due

    def query(self) -> bool:
        """True if it has ended."""
        return self._clock.now >= self._due

    def synchronize(self) -> None:
        """Wait for the end."""


class Clock:
    """Made-up copies: SGLang's L2TransferEngine with events by steps. plans: those until now."""

    def __init__(self, num_steps: int, *, overlaps: bool) -> None:
        self.now = 0
        self._num_steps = num_steps
        self._load_steps = 1 + overlaps
        self.is_planning = False

    def submit_device_to_host(self, transfers: Any) -> Any:
        """A write, which begins with the next plan, or in the present one."""
        begins = self.now if self.is_planning else self.now + 1
        return self._completion(begins + 1 + self._num_steps)

    def submit_host_to_device(self, transfers: Any, **others: Any) -> Any:
        """A load for the iteration of the present plan."""
        return self._completion(self.now + self._load_steps)

    def _completion(self, due: int) -> Any:
        from sglang.srt.mem_cache.l2_transfer import TransferCompletion

        return TransferCompletion(None, Event(self, due), False)


class Theirs:
    """The installed SGLang's scheduler, tree, controller and pools."""

    def __init__(self, load: Load) -> None:
        self.name = f"sglang {sglang.installed_release()}"
        self.options = load.options
        self.scheduler = sglang.make_scheduler(load.options, load.hierarchy)
        self.tree = self.scheduler.tree_cache
        controller = self.tree.cache_controller
        self.clock = Clock(load.num_steps, overlaps=load.options.overlaps)
        controller.l2_transfer_engine = self.clock
        self._new = count(OUTPUT)
        self._output_lens: dict[str, int] = {}
        self._in_flight: Any = None
        self._retracted = list[int]()
        self._loaded = self._stored = self._evicted = 0
        self._watch(controller)

    def add(self, request: Request) -> None:
        options, ids = self.options, request.prompt_ids or ()
        priority = request.priority if options.reads_priorities else None
        req = sglang.make_request(
            request.request_id,
            ids[: request.prompt_len],
            request.max_new_tokens,
            priority,
            ignore_eos=options.ignore_eos,
        )
        self.scheduler.init_req_max_new_tokens(req)
        self._output_lens[req.rid] = request.output_len
        self.scheduler._add_request_to_queue(req)

    def is_idle(self) -> bool:
        scheduler, controller = self.scheduler, self.tree.cache_controller
        last = scheduler.last_batch
        return not (
            scheduler.waiting_queue
            or scheduler.running_batch.reqs
            or self._in_flight
            or controller.has_inflight_device_transfers()
            or (last is not None and any(not req.finished() for req in last.reqs))
        )

    def step(self, number: int) -> Step:
        self.clock.now, self.clock.is_planning = number, True
        batch = sglang.next_batch(self.scheduler, overlaps=self.options.overlaps)
        self.clock.is_planning = False
        step = self._decided(batch)
        if self.options.overlaps:
            batch, self._in_flight = self._in_flight, None if batch is None else batch.copy()
        if batch is not None:
            sglang.finish(self.scheduler, batch, self._sample)
            self.tree.flush_pending_backups()
        elif self._in_flight is None:
            self.scheduler.new_token_ratio_tracker.reset()  # on_idle
        return self._with_counts(step)

    def _decided(self, batch: Any) -> Step:
        retracted, self._retracted = tuple(sorted(self._retracted)), []
        if batch is None:
            return Step({}, {}, {}, {}, 0, retracted)
        names = [int(req.rid) for req in batch.reqs]
        if not batch.forward_mode.is_extend():
            return Step(dict.fromkeys(names, 1), {}, {}, {}, 0, retracted)
        decoding = {int(req.rid) for req in batch.decoding_reqs or ()}
        prefixes = zip(names, batch.prefix_lens, strict=True)
        found = {name: n for name, n in prefixes if n and name not in decoding}
        return Step(dict(zip(names, batch.extend_lens, strict=True)), found, {}, {}, 0, retracted)

    def _with_counts(self, step: Step) -> Step:
        loaded, stored, evicted = self._loaded, self._stored, self._evicted
        self._loaded = self._stored = self._evicted = 0
        return step._replace(
            loaded={OF_ALL: loaded} if loaded else {},
            stored={OF_ALL: stored} if stored else {},
            evicted=evicted,
            free=self.tree.cache_controller.mem_pool_host.available_size(),
        )

    def _sample(self, req: Any) -> int:
        is_last = len(req.output_ids) + 1 == self._output_lens[req.rid]
        return sglang.STOP if is_last and not self.options.ignore_eos else next(self._new)

    def _watch(self, controller: Any) -> None:
        """Count what is loaded, written and freed on the host, and the retracted requests."""
        load, write, free = controller.load, controller.write, self.tree.host_pool_group.free
        enqueue = self.scheduler._add_request_to_queue

        def loads(*arguments: Any, **named: Any) -> Any:
            indices = load(*arguments, **named)
            self._loaded += 0 if indices is None else len(indices)
            return indices

        def writes(*arguments: Any, **named: Any) -> Any:
            indices = write(*arguments, **named)
            self._stored += 0 if indices is None else len(indices)
            return indices

        def frees(indices: Any, *arguments: Any, **named: Any) -> Any:
            self._evicted += len(indices)
            return free(indices, *arguments, **named)

        def enqueues(req: Any, is_retracted: bool = False) -> None:
            if is_retracted:
                self._retracted.append(int(req.rid))
            enqueue(req, is_retracted)

        controller.load, controller.write = loads, writes
        self.tree.host_pool_group.free = frees
        self.scheduler._add_request_to_queue = enqueues


def draw(random: Random, num_requests: int) -> Load:
    """A random server, and requests that share beginnings with each other."""
    size = random.choice([1, 4, 16])
    num_pages = random.randint(max(5, 20 // size), 100)
    chunk = random.choice([None, 2 * size, 4 * size, 16 * size])
    factor = random.choice([1, 1.01, 2])
    running = random.choice([1, 2, 8, 64])
    mixes = random.random() < 0.3 and chunk is not None and chunk > running
    strategy = random.choice(["lru", "lru", *STRATEGIES])
    options = Options(
        total_tokens=num_pages * size,
        page_size=size,
        max_running_requests=running,
        max_prefill_tokens=random.choice([64, 512, 16384]),
        chunked_prefill_size=chunk,
        enable_mixed_chunk=mixes,
        prefill_max_requests=None,
        schedule_policy=random.choice(["fcfs", "fcfs", "lpm", "dfs-weight"]),
        schedule_conservativeness=random.choice([0.1, 0.3, 1.0]),
        decay_steps=random.choice([30, 600]),
        enable_priority_scheduling=False,
        schedule_low_priority_values_first=False,
        retraction_policy="length",
        context_length=MAX_LEN,
        ignore_eos=factor == 1,
        disable_radix_cache=False,
        radix_eviction_policy=strategy,
        radix_eviction_policy_config=draw_config(random, strategy),
        overlaps=random.random() < 0.5,
    )
    host_pages = max(round(num_pages * random.uniform(0.5, 4)), 1) + 1
    return Load(
        options,
        Hierarchy(host_pages, random.choice(WRITE_POLICIES)),
        random.randint(0, 10),
        tuple(_requests(random, num_requests, options, factor)),
    )


def _requests(
    random: Random, num_requests: int, options: Options, factor: float
) -> Iterator[Request]:
    pool, size = options.total_tokens, options.page_size
    num_stories = random.choice([4, 16])
    stories = [[random.randrange(10, 10**6) for _ in range(pool)] for _ in range(num_stories)]
    gap, now = random.choice([0.5, 3, 15]), 0.0
    most = pool - 2 * size - 2  # SGLang cuts no output then
    for i in range(num_requests):
        now += random.expovariate(1 / gap)
        output_len = random.choice([1, random.randint(1, max(most // 4, 1))])
        length = random.randint(1, random.choice([most // 4 + 1, most // 2 + 1, most - output_len]))
        if random.random() < 0.5:  # whole pages
            length = max(length // size * size, 1)
        length = max(min(length, most - ceil(output_len * factor)), 1)
        shared = random.choice([0, length, random.randint(0, length)])
        own = (random.randrange(10, 10**6) for _ in range(length - shared))
        ids = (*random.choice(stories)[:shared], *own)
        yield Request(
            i,
            round(now * STEP_PS),
            length,
            output_len,
            prompt_ids=ids,
            priority=random.randint(0, 2),
            max_new_tokens=ceil(output_len * factor),
        )


def check_hicache(number: int, seed: int, num_requests: int) -> Iterator[str]:
    """Compare `number` random loads; lines of a report, the last of which names the first
    difference if there is one.
    """
    totals = Totals()
    for i in range(number):
        load = draw(Random(f"hicache/{seed}/{i}"), num_requests)

        def make(load: Load = load) -> tuple[Ours, Theirs]:
            return Ours(load), Theirs(load)

        if compare_steps(make, load.requests, totals):
            yield f"seed {seed}, load {i}: {load.options}, {load.hierarchy}, {load.num_steps} steps"
            yield from shortest_workload(make, load.requests)
            return
    yield (
        f"sglang {sglang.installed_release()}: {totals.steps:,} steps of {number} loads are equal; "
        f"tokens: {totals.computed:,} computed, {totals.found:,} found, {totals.loaded:,} loaded, "
        f"{totals.stored:,} stored, {totals.evicted:,} evicted below; "
        f"{totals.preempted:,} retractions"
    )
