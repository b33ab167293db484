"""Our scheduler and vLLM's on a clock of constant iterations, each driven as its engine drives
it.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice, product
from typing import Any

from testbed.build import Setup, build
from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.cost.model import CostModel, Work
from testbed.engine.arrivals import SessionWorkload
from testbed.engine.clients import OpenLoop
from testbed.engine.engine import Engine
from testbed.engine.executor import Flight
from testbed.engine.outputs import Outputs
from testbed.engine.recorder import Recorder
from testbed.engine.sim_clock import SimClock
from testbed.engine.simulated import SimulatedExecutor
from testbed.experiments.lockstep import vllm_installation as vllm
from testbed.experiments.lockstep.comparison import Iteration, Sides
from testbed.experiments.lockstep.vllm_installation import Options, options_of
from testbed.result import front_end
from testbed.sched.plan import Plan
from testbed.sched.scheduler import Scheduler

STOP = 1  # the token that ends an output


class Constant(CostModel):
    """Every iteration takes the same time, and is simulated by itself."""

    def __init__(self, iteration_ps: int) -> None:
        self._iteration_ps = iteration_ps

    def iteration(self, work: Work) -> int:
        return self._iteration_ps


class WatchedExecutor(SimulatedExecutor):
    """Keeps the iterations that have begun, until they are taken."""

    def __init__(
        self, clock: SimClock, scheduler: Scheduler, cost: CostModel, outputs: Outputs
    ) -> None:
        super().__init__(clock, scheduler, cost, outputs)
        self._state = scheduler.state
        self._preempted: list[int] = []
        self._tokens: dict[Flight, dict[int, int]] = {}
        self._begun: list[Iteration] = []

    def start(self, plan: Plan) -> Flight:
        flight = super().start(plan)
        self._tokens[flight] = self._tokens_of(plan)
        return flight

    def begin(self, flight: Flight, max_steps: int, end_by_ps: int, plan_by_ps: int) -> None:
        super().begin(flight, max_steps, end_by_ps, plan_by_ps)
        self.move(flight.plan)
        preempted, self._preempted = tuple(self._preempted), []
        self._begun.append(Iteration(flight.start_ps, self._tokens.pop(flight), preempted))

    def move(self, plan: Plan) -> None:
        """Preemptions of a plan without work count with the next iteration."""
        self._preempted += [group.request.request_id for group in plan.preempted]

    def take(self) -> list[Iteration]:
        begun, self._begun = self._begun, []
        return begun

    def _tokens_of(self, plan: Plan) -> dict[int, int]:
        """Tokens by request, as planned: a request that has ended meanwhile may be among them."""
        tokens = Counter(
            {seq.request_id: 1 for seq in self._state.batch} if plan.decode_seqs else {}
        )
        for chunk in plan.chunks:
            tokens[chunk.group.request.request_id] += chunk.new
        return tokens


class Ours:
    """What `testbed run` builds, served by the engine one iteration at a time."""

    name = "testbed"

    def __init__(self, setup: Setup) -> None:
        self.scheduler = setup.scheduler
        self.block_size = int(setup.config.policy.parameters["block_size"])
        self.outputs = Outputs(self.scheduler.state, setup.beams, setup.lengths)
        self._max_len = setup.model.max_len

    def iterations(self, requests: Sequence[Request], iteration_ps: int) -> Iterator[Iteration]:
        """Every iteration that computes something, until all requests have ended."""
        clock, cost = SimClock(), Constant(iteration_ps)
        executor = WatchedExecutor(clock, self.scheduler, cost, self.outputs)
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
            lines.append(
                f"running {group.request.request_id}: {seq.num_stored} stored, {blocks} blocks"
            )
        waiting = (
            f"{group.request.request_id} ({group.prefill_len} tokens)" for group in state.waiting
        )
        return [*lines, "waiting " + (", ".join(waiting) or "none")]


def served(setup: Setup) -> tuple[list[Request], int]:
    """The requests that are not turned away on arrival, in order of arrival, and how many are."""
    if isinstance(setup.workload, SessionWorkload):
        raise InputError(
            "arrivals=sessions: iterations are compared on fixed arrivals (another arrivals=)"
        )
    policy, requests = setup.scheduler.policy, list(setup.workload)
    taken = [
        request
        for request in requests
        if request.final_len <= min(setup.model.max_len, policy.max_seq_len(request.prompt_len, 1))
    ]
    if not taken:
        raise InputError(
            "the workload: has no request that fits the pool (a larger server.num_blocks)"
        )
    return taken, len(requests) - len(taken)


class Theirs:
    """The installation's scheduler; output tokens are unique."""

    def __init__(self, options: Options) -> None:
        self.name = f"vllm {vllm.installed_release()}"
        self.options = options
        self.scheduler = vllm.make_scheduler(options)
        self._hasher = vllm.block_hasher(options.block_size) if options.caches else None
        self._new = count(STOP + 1)  # tokens that no other request has
        self._known = defaultdict[tuple[int, int], int](lambda: next(self._new))
        self._requests: dict[str, Request] = {}
        self._num_generated: dict[str, int] = {}
        self._preempted: list[int] = []

    def iterations(self, requests: Sequence[Request], iteration_ps: int) -> Iterator[Iteration]:
        """Every iteration that computes something, until all requests have ended. `planned` holds
        what was scheduled and has not ended: under asynchronous scheduling the next one is made
        when one begins, else when it has ended. What is planned while another runs begins when that
        one ends.
        """
        arriving, now_ps, planned = deque(requests), 0, deque[Any]()
        depth = 2 if self.options.asynchronous else 1
        while True:
            while arriving and arriving[0].arrival_ps <= now_ps:
                self._add(arriving.popleft())
            output = self.scheduler.schedule() if self.scheduler.has_requests() else None
            if output is not None:
                self._preempted += map(int, output.preempted_req_ids or ())
                tokens, scheduled = output.num_scheduled_tokens, self.scheduler.requests
                # An iteration brings an output token but to those that have a chunk of the prompt
                # before them.
                planned.append(
                    (output, {name for name in tokens if not scheduled[name].is_prefill_chunk})
                )
                if output.total_num_scheduled_tokens:
                    begins_ps, preempted = (
                        now_ps + iteration_ps * (len(planned) - 1),
                        tuple(self._preempted),
                    )
                    self._preempted = []
                    yield Iteration(
                        begins_ps, {int(name): n for name, n in tokens.items()}, preempted
                    )
                    if len(planned) < depth:
                        continue
            if planned:
                ended, sampling = planned.popleft()
                now_ps += iteration_ps if ended.total_num_scheduled_tokens else 0
                self._update(ended, sampling)
            elif arriving:
                now_ps = arriving[0].arrival_ps
            else:
                return

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

    def _add(self, request: Request) -> None:
        tokens = self._prompt(request) if self.options.caches else [0] * request.prompt_len
        most = request.output_len if self.options.ignore_eos else self.options.max_model_len
        stop = None if self.options.ignore_eos else STOP
        self._requests[str(request.request_id)] = request
        self.scheduler.add_request(
            vllm.make_request(request.request_id, tokens, most, stop, self._hasher)
        )

    def _prompt(self, request: Request) -> list[int]:
        """Equal tokens for equal contents, new ones for contents that no other request has."""
        if request.prompt_ids is None:
            return [next(self._new) for _ in range(request.prompt_len)]
        places = product(request.prompt_ids, range(request.tokens_per_id))
        return [self._known[place] for place in islice(places, request.prompt_len)]

    def _update(self, output: Any, sampling: set[str]) -> None:
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(output.num_scheduled_tokens)
        sampled = [[self._token(name)] if name in sampling else [] for name in names]
        self.scheduler.update_from_output(
            output, ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)
        )

    def _token(self, name: str) -> int:
        """The next output token of a request: the last one stops it, unless its number does."""
        number = self._num_generated[name] = self._num_generated.get(name, 0) + 1
        stops = not self.options.ignore_eos and number == self._requests[name].output_len
        return STOP if stops else next(self._new)


def sides_of(
    overrides: Sequence[str], requests: list[Request] | None
) -> tuple[Callable[[], Sides], Setup]:
    """What makes a fresh pair of schedulers, ours first, of the words of `testbed run`; and one
    setup of ours. `requests` take the place of the configured trace and arrivals. Raises InputError
    where vLLM has no such option, or is not installed.
    """
    config = front_end().configure(overrides, {} if requests is None else {"trace": requests})
    setup = build(config)
    setup.check_alone("a lockstep")
    options = options_of(setup)
    return lambda: (Ours(build(config)), Theirs(options)), setup
