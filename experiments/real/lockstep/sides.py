"""Our scheduler and vLLM's, each driven by its engine's loop, with iterations of constant time."""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.cost.model import CostModel, Work
from testbed.engine.arrivals import AnswerDrivenWorkload
from testbed.engine.clients import OpenLoop
from testbed.engine.engine import Engine
from testbed.engine.executor import Flight
from testbed.engine.outputs import Outputs
from testbed.engine.recorder import Recorder
from testbed.engine.sim_clock import SimClock
from testbed.engine.simulated import SimulatedExecutor
from testbed.experiments.real.lockstep import vllm_installation as vllm
from testbed.experiments.real.lockstep.comparison import Iteration, Sides, Tokens
from testbed.experiments.real.lockstep.vllm_installation import Options, options_of
from testbed.run.build import Setup, build
from testbed.run.result import front_end
from testbed.sched.plan import Plan
from testbed.sched.scheduler import Scheduler
from testbed.speculation.speculation import Speculation

STOP = 1  # the token that ends an output


class Constant(CostModel):
    """Every iteration takes the same time; iterations are not taken together."""

    def __init__(self, iteration_ps: int) -> None:
        self._iteration_ps = iteration_ps

    def iteration(self, work: Work) -> int:
        return self._iteration_ps


class WatchedExecutor(SimulatedExecutor):
    """An executor that records the iterations that have begun; `take` returns and forgets them."""

    def __init__(
        self, clock: SimClock, scheduler: Scheduler, cost: CostModel, outputs: Outputs
    ) -> None:
        super().__init__(clock, scheduler, cost, outputs)
        self.decode_cost = None  # every plan is started and begun here
        self._state = scheduler.state
        self._preempted: list[int] = []
        self._tokens: dict[Flight, dict[int, int]] = {}
        self.counts_cached = False
        self._begun: list[Iteration] = []

    def start(self, plan: Plan) -> Flight:
        flight = super().start(plan)
        self._tokens[flight] = self._tokens_of(plan)
        return flight

    def begin(self, flight: Flight, max_steps: int, end_by_ps: int, plan_by_ps: int) -> None:
        super().begin(flight, max_steps, end_by_ps, plan_by_ps)
        self.move(flight.plan)
        preempted, self._preempted = tuple(self._preempted), []
        tokens, cached = self._tokens.pop(flight), dict[int, int]()
        if self.counts_cached:
            chunks = flight.plan.chunks
            cached = {c.group.request_id: c.num_stored for c in chunks if c.num_stored}
        self._begun.append(Iteration(flight.start_ps, tokens, preempted, cached))

    def move(self, plan: Plan) -> None:
        """Record the plan's preemptions; those of a plan without work join the next iteration."""
        self._preempted += [group.request_id for group in plan.preempted]

    def take(self) -> list[Iteration]:
        """The iterations that have begun since the last call."""
        begun, self._begun = self._begun, []
        return begun

    def _tokens_of(self, plan: Plan) -> dict[int, int]:
        """The planned tokens of each request, even if it has ended meanwhile."""
        tokens = Counter[int]()
        if plan.decode_seqs:
            tokens = Counter({seq.request_id: 1 for seq in self._state.batch})
        for draft in plan.drafts:
            tokens[draft.group.request_id] = 1 + draft.num_drafts
        for chunk in plan.chunks:
            tokens[chunk.group.request_id] += chunk.new + chunk.padding
        return tokens


class Ours:
    """Our scheduler as `testbed run` builds it, served by our engine one iteration at a time."""

    name = "testbed"
    counts_cached: ClassVar[bool] = False

    def __init__(self, setup: Setup) -> None:
        self.scheduler = setup.scheduler
        self.block_size = setup.scheduler.memory.block_size or 1
        parts = setup.parts
        self.outputs = Outputs(self.scheduler.state, parts.beams, parts.lengths, parts.acceptance)
        self._max_len = setup.model.max_len

    def iterations(self, requests: Sequence[Request], iteration_ps: int) -> Iterator[Iteration]:
        """The iterations that compute something, until all requests have ended."""
        clock, cost = SimClock(), Constant(iteration_ps)
        executor = WatchedExecutor(clock, self.scheduler, cost, self.outputs)
        executor.counts_cached = self.counts_cached
        engine = Engine(self.scheduler, executor, self.outputs, Recorder(), self._max_len)
        OpenLoop(clock, engine, requests).start()
        ended = clock.start(engine.serve())
        while not ended.processed:
            clock.env.step()
            yield from executor.take()

    def state(self) -> list[str]:
        """Its requests and its pool now."""
        state, policy = self.scheduler.state, self.scheduler.policy
        usage = policy.usage()
        lines = [f"{(usage.total - usage.held) // self.block_size} blocks are not held"]
        for group in state.running.values():
            seq = group.sequences[0]
            blocks = len(policy.table(seq))
            lines.append(f"running {group.request_id}: {seq.num_stored} stored, {blocks} blocks")
        waiting = (f"{group.request_id} ({group.prefill_len} tokens)" for group in state.waiting)
        return [*lines, "waiting " + (", ".join(waiting) or "none")]


def served(setup: Setup) -> tuple[list[Request], int]:
    """The requests that fit, in order of arrival, and the number of those rejected on arrival."""
    if isinstance(setup.workload, AnswerDrivenWorkload):
        raise InputError(
            key="arrivals",
            problem="a closed loop; iterations are compared on fixed arrivals",
            remedy="choose another arrivals=",
        )
    policy, requests = setup.scheduler.policy, list(setup.workload)

    def fits(request: Request) -> bool:
        most = min(setup.model.max_len, policy.max_seq_len(request.prompt_len, 1))
        longest = setup.scheduler.max_output_len(request.prompt_len)
        return request.final_len <= most and (longest is None or request.output_len <= longest)

    fitting = list(filter(fits, requests))
    if not fitting:
        raise InputError(
            key="the workload",
            problem="has no request that fits the pool",
            remedy="a larger server.num_blocks",
        )
    return fitting, len(requests) - len(fitting)


class Theirs:
    """The scheduler of the installed vLLM; an output token is one that no request had, or what
    later prompts contain.
    """

    def __init__(
        self,
        options: Options,
        speculation: Speculation | None = None,
        offloading: Mapping[str, Any] | None = None,
    ) -> None:
        self.speculation = speculation
        self.name = f"vllm {vllm.installed_release()}"
        self.options = options
        self.scheduler = vllm.make_scheduler(options, offloading)
        behind = getattr(self.scheduler, "num_hash_lookahead_tokens", 0)  # since 0.33
        size = options.block_size
        self._hasher = vllm.block_hasher(size, behind) if options.caches else None
        self._tokens = Tokens(STOP + 1)
        self._requests: dict[str, Request] = {}
        self._num_generated: dict[str, int] = {}
        self._preempted: list[int] = []

    def iterations(self, requests: Sequence[Request], iteration_ps: int) -> Iterator[Iteration]:
        """The iterations that compute something, until all requests have ended.

        `planned` holds the scheduled iterations that have not ended. Under asynchronous scheduling
        an iteration is scheduled when the one before begins, else when it has ended; it begins when
        the one before ends.
        """
        arriving, planned = deque(requests), deque[Any]()
        now_ps = 0
        depth = 2 if self.options.asynchronous else 1
        while True:
            while arriving and arriving[0].arrival_ps <= now_ps:
                self.add(arriving.popleft())
            output = self.scheduler.schedule() if self.scheduler.has_requests() else None
            if output is not None:
                self._preempted += map(int, output.preempted_req_ids or ())
                planned.append((output, self.sampling(output)))
                if output.total_num_scheduled_tokens:
                    yield self._iteration(output, now_ps + iteration_ps * (len(planned) - 1))
                    if len(planned) < depth:
                        continue
            if planned:
                ended, sampling = planned.popleft()
                now_ps += iteration_ps if ended.total_num_scheduled_tokens else 0
                self.update(ended, sampling)
            elif arriving:
                now_ps = arriving[0].arrival_ps
            else:
                return

    def sampling(self, output: Any) -> set[str]:
        """The requests that get an output token: all but those with more of the prompt to do."""
        scheduled = self.scheduler.requests
        names = output.num_scheduled_tokens
        return {name for name in names if not scheduled[name].is_prefill_chunk}

    def _iteration(self, output: Any, begins_ps: int) -> Iteration:
        """A scheduled iteration, with the preemptions since the one before."""
        preempted, self._preempted = tuple(self._preempted), []
        tokens = {int(name): count for name, count in output.num_scheduled_tokens.items()}
        return Iteration(begins_ps, tokens, preempted)

    def state(self) -> list[str]:
        """Its requests and its pool now."""
        manager = self.scheduler.kv_cache_manager
        lines = [f"{manager.block_pool.get_num_free_blocks()} blocks are not held"]
        for request in self.scheduler.running:
            blocks = len(manager.get_block_ids(request.request_id)[0])
            lines.append(
                f"running {request.request_id}: {request.num_computed_tokens} scheduled, {blocks} "
                f"blocks"
            )
        waiting = (
            f"{request.request_id} ({request.num_tokens} tokens)"
            for request in self.scheduler.waiting
        )
        return [*lines, "waiting " + (", ".join(waiting) or "none")]

    def add(self, request: Request) -> None:
        """The request arrives."""
        tokens = self._tokens.prompt(request) if self.options.caches else [0] * request.prompt_len
        most = request.output_len if self.options.ignore_eos else self.options.max_model_len
        stop = None if self.options.ignore_eos else STOP
        self._requests[str(request.request_id)] = request
        if stop is not None:
            self._tokens.end_answer(request, stop)
        self.scheduler.add_request(
            vllm.make_request(
                request.request_id, tokens, most, stop, self._hasher, request.priority
            )
        )

    def update(self, output: Any, sampling: set[str], connector_output: Any = None) -> None:
        """An iteration has ended, in which these requests got an output token. connector_output:
        vLLM's KVConnectorOutput, if it has a connector.
        """
        names, drafts = list(output.num_scheduled_tokens), self._num_drafts(output)
        sampled = {
            name: self._sampled(name, drafts.get(name, 0)) if name in sampling else []
            for name in names
        }
        vllm.update(self.scheduler, output, sampled, connector_output)
        if self.speculation is not None and not self.options.asynchronous:
            self._draft([name for name in names if name in sampling], len(names))

    def _num_drafts(self, output: Any) -> dict[str, int]:
        """The drafts of each request in an iteration. Drafts of a request that is admitted pad it,
        since release 0.33, and every worker rejects them.
        """
        new = {request.req_id for request in output.scheduled_new_reqs}
        new |= output.scheduled_cached_reqs.resumed_req_ids
        drafts = output.scheduled_spec_decode_tokens
        return {name: len(drafts[name]) for name in drafts if name not in new}

    def _sampled(self, name: str, num_drafts: int) -> list[int]:
        """The output tokens of an iteration with num_drafts drafts: the accepted ones, and one
        more. Tokens behind the last one of an output are not read.
        """
        accepted = 0
        if self.speculation is not None:
            accepted = self.speculation.acceptance.accepted(
                int(name), self._num_generated.get(name, 0), num_drafts
            )
        return [self._token(name) for _ in range(1 + accepted)]

    def _draft(self, names: list[str], batch_size: int) -> None:
        """Propose the next drafts of these requests, as a worker does when an iteration is over."""
        from vllm.v1.outputs import DraftTokenIds

        assert self.speculation is not None, "asked of a side that speculates"
        drafts = self.speculation.num_drafts
        counts = [drafts(int(name), self._num_generated[name], batch_size) for name in names]
        proposed = [[self._tokens.new() for _ in range(count)] for count in counts]
        self.scheduler.update_draft_token_ids(DraftTokenIds(names, proposed))

    def _token(self, name: str) -> int:
        """The next output token of a request; STOP for the last one, unless a number ends it."""
        number = self._num_generated[name] = self._num_generated.get(name, 0) + 1
        request = self._requests[name]
        if not self.options.ignore_eos and number == request.output_len:
            return STOP
        return self._tokens.answer(request, number - 1)


def sides_of(
    overrides: Sequence[str], requests: list[Request] | None
) -> tuple[Callable[[], Sides], Setup]:
    """A function that makes a new pair of schedulers, ours first, and one setup of ours.

    overrides: words of `testbed run`. requests: replace the configured trace and arrivals. Raises
    InputError if vLLM is not installed or lacks an option.
    """
    config = front_end().configure(overrides, {} if requests is None else {"trace": requests})
    setup = build(config)
    setup.check_alone("a lockstep")
    options, speculation = options_of(setup), setup.scheduler.drafter
    return lambda: (Ours(build(config)), Theirs(options, speculation)), setup
