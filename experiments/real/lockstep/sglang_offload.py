"""SGLang's scheduler with HiCache beside ours with policy=hicache, on random loads. No copy is
made: its end is reported to both.

A write takes a stated number of steps. A load ends with the iteration that waits for it, as in
SGLang (LayerDoneCounter.wait_until).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from random import Random
from typing import Any

from testbed.core.request import Request
from testbed.experiments.real.lockstep import sglang_installation as sglang
from testbed.experiments.real.lockstep.offload_steps import (
    OurSteps,
    Step,
    check_loads,
    draw_ids,
    draw_requests,
)
from testbed.experiments.real.lockstep.sglang_draws import draw_config
from testbed.experiments.real.lockstep.sglang_installation import Hierarchy, Options
from testbed.experiments.real.lockstep.sglang_sides import FIRST, TheirsOfSGLang
from testbed.memory.offloading.hicache import WRITE_POLICIES, HiCache
from testbed.memory.policy import PoolSpec, Tier
from testbed.memory.radix.strategies import STRATEGIES
from testbed.sched.plan import Plan, Results
from testbed.sched.preemption import Recompute
from testbed.sched.sglang import SGLang
from testbed.sched.sglang_overlap import OverlappedSGLang

MAX_LEN = 4096


@dataclass(frozen=True, slots=True)
class Load:
    """A server and its requests. num_steps: that a write takes."""

    options: Options
    hierarchy: Hierarchy
    num_steps: int
    requests: tuple[Request, ...] = field(repr=False)


class Ours(OurSteps):
    """Our scheduler and policy."""

    def __init__(self, load: Load) -> None:
        options, size = load.options, load.options.page_size
        below = Tier("dram", load.hierarchy.num_pages * size)
        policy = HiCache(
            PoolSpec(options.total_tokens, MAX_LEN, (below,)),
            size,
            options.radix_eviction_policy,
            load.hierarchy.hicache_write_policy,
            options.radix_eviction_policy_config,
        )
        scheduler = (OverlappedSGLang if options.overlaps else SGLang)(
            policy,
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
        super().__init__(scheduler, load.num_steps)
        self._in_flight: tuple[Plan, tuple[int, ...]] | None = None

    def is_idle(self) -> bool:
        return super().is_idle() and self._in_flight is None

    def step(self, number: int) -> Step:
        step, size = super().step(number), self.policy.block_size
        sums = [count * size for count in self.growth()]
        return step.with_sums(sums, len(self.policy.tree.host.free) * size)

    def counts(self) -> list[int]:
        tree = self.policy.tree
        return [self.policy.num_loaded, tree.num_written, tree.evicted_below]

    def decided(self, plan: Plan, number: int) -> Step:
        for transfer in (transfer for ops in plan.ops for transfer in ops.background):
            self.due[transfer.move_id] = number + 1 + self.num_steps
        step = super().decided(plan, number)
        return step._replace(found={name: found for name, found in step.found.items() if found})

    def carry_out(self, plan: Plan) -> None:
        """With overlap, end the iteration before, and begin this one."""
        if not self.scheduler.plans_ahead:
            super().carry_out(plan)
            return
        if self._in_flight is not None:
            before, ended = self._in_flight
            self.scheduler.commit(before, 1, Results(ended, {}, {}))
            self._in_flight = None
        if plan.decode_seqs or plan:
            ended = self.outputs.ended(plan, 1)
            outcome = self.scheduler.anticipate(plan, 1, ended)
            self.outputs.follow(plan, outcome, ended)
            self._in_flight = plan, ended


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


class Theirs(TheirsOfSGLang):
    """The installed SGLang's scheduler, tree, controller and pools."""

    def __init__(self, load: Load) -> None:
        super().__init__(load.options, load.hierarchy)
        self.tree = self.scheduler.tree_cache
        self.clock = Clock(load.num_steps, overlaps=load.options.overlaps)
        self.tree.cache_controller.l2_transfer_engine = self.clock
        self._sums = Counter[str]()
        self._count("loaded", self.tree.cache_controller, "load")
        self._count("stored", self.tree.cache_controller, "write")
        self._count("evicted", self.tree.host_pool_group, "free", of_argument=True)

    def is_idle(self) -> bool:
        scheduler, controller = self.scheduler, self.tree.cache_controller
        last = scheduler.last_batch
        return not (
            scheduler.waiting_queue
            or scheduler.running_batch.reqs
            or self.in_flight
            or controller.has_inflight_device_transfers()
            or (last is not None and any(not req.finished() for req in last.reqs))
        )

    def step(self, number: int) -> Step:
        self.clock.now, self.clock.is_planning = number, True
        batch = sglang.next_batch(self.scheduler, overlaps=self.options.overlaps)
        self.clock.is_planning = False
        begun = self.iteration(batch, 0)
        if self.process(batch):
            self.tree.flush_pending_backups()
        sums, self._sums = self._sums, Counter()
        free = self.tree.cache_controller.mem_pool_host.available_size()
        step = Step(begun.tokens, begun.cached, preempted=tuple(sorted(begun.preempted)))
        return step.with_sums([sums[name] for name in ("loaded", "stored", "evicted")], free)

    def _count(self, what: str, owner: Any, method: str, *, of_argument: bool = False) -> None:
        """Count the indices that a method returns, or that it is given."""
        call = getattr(owner, method)

        def counted(*arguments: Any, **named: Any) -> Any:
            indices = call(*arguments, **named)
            own = arguments[0] if of_argument else indices
            self._sums[what] += 0 if own is None else len(own)
            return indices

        setattr(owner, method, counted)


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
        schedule_policy=random.choice(["fcfs", "fcfs", "lpm", "dfs-weight"]),
        schedule_conservativeness=random.choice([0.1, 0.3, 1.0]),
        decay_steps=random.choice([30, 600]),
        context_length=MAX_LEN,
        ignore_eos=factor == 1,
        radix_eviction_policy=strategy,
        radix_eviction_policy_config=draw_config(random, strategy),
        overlaps=random.random() < 0.5,
    )
    host_pages = max(round(num_pages * random.uniform(0.5, 4)), 1) + 1
    hierarchy = Hierarchy(host_pages, random.choice(WRITE_POLICIES))
    num_steps, pool = random.randint(0, 10), options.total_tokens
    stories = [draw_ids(random, pool, FIRST) for _ in range(random.choice([4, 16]))]
    most = pool - 2 * size - 2  # SGLang cuts no output then
    drawn = draw_requests(random, num_requests, stories, most, size, factor, FIRST)
    requests = (
        request._replace(
            priority=random.randint(0, 2), max_new_tokens=ceil(request.output_len * factor)
        )
        for request in drawn
    )
    return Load(options, hierarchy, num_steps, tuple(requests))


def check_hicache(number: int, seed: int, num_requests: int) -> Iterator[str]:
    """Compare `number` random loads; see `check_loads`."""
    loads = (draw(Random(f"hicache/{seed}/{i}"), num_requests) for i in range(number))
    name = f"sglang {sglang.installed_release()}"
    return check_loads(name, loads, Ours, Theirs, "retractions")
