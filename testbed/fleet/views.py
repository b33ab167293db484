"""A router's view of an engine."""

from collections.abc import Mapping

from testbed.core.request import Incoming
from testbed.core.sequence import SequenceGroup
from testbed.engine.engine import Engine
from testbed.fleet.cache_index import CacheIndex


class EngineView:
    """An engine as it stands now, also in the middle of a span of iterations.

    An iteration that ends at this very moment has not ended yet unless the engine has had its turn.

    Attributes:
        number: of the engine, from 0.
    """

    def __init__(self, number: int, engine: Engine, index: CacheIndex | None = None) -> None:
        """A view; the fleet makes it.

        Args:
            number: of the engine, from 0.
            engine: that it shows.
            index: the router's index of the caches; None if it reads none.
        """
        self.number = number
        self.engine = engine
        self._index = index

    @property
    def num_requests(self) -> int:
        """Requests that the engine has not answered, or will get from an engine that prefills."""
        return len(self.engine.outputs.requests) + len(self._expected)

    @property
    def num_running(self) -> int:
        """The number of requests that have slots on the device."""
        return len(self.engine.scheduler.state.running)

    @property
    def num_waiting(self) -> int:
        """The number of requests that wait for slots, preempted ones included."""
        return self.num_requests - self.num_running

    @property
    def kv_usage(self) -> float:
        """The share of the pool that requests hold, from 0 to 1; cached blocks of none are free."""
        used = self.engine.scheduler.state.policy.usage()
        return 1 - (used.free + used.cached) / used.total

    @property
    def num_tokens(self) -> int:
        """Tokens of their prompts, and of the outputs of all their sequences so far."""
        state, steps = self.engine.scheduler.state, steps_since_commit(self.engine)
        groups = [*state.waiting, *state.loading, *state.swapped, *state.running.values()]
        return sum(_tokens_of(group, steps) for group in groups) + sum(self._expected.values())

    @property
    def _expected(self) -> Mapping[int, int]:
        return self.engine.hooks.expected

    def num_cached(self, request: Incoming) -> int:
        """Leading tokens of the request's prompt that the engine's prefix cache had, cache_age_s of
        the router ago. 0 for a router that reads no caches.

        Args:
            request: one that has arrived.
        """
        return 0 if self._index is None else self._index.num_cached(self.number, request)

    def __repr__(self) -> str:
        return f"engine {self.number}"


def _tokens_of(group: SequenceGroup, steps: int) -> int:
    num_generated = group.num_generated + (0 if group.batch is None else steps)
    return group.request.prompt_len + group.request.num_seqs * num_generated


def steps_since_commit(engine: Engine) -> int:
    """Decode steps of the present span that the scheduler would count now if it had made a plan
    for each iteration.

    A scheduler that plans ahead counts an iteration when it begins, any other when it has ended.
    """
    flight, scheduler = engine.flight, engine.scheduler
    if flight is None or flight.is_last or not flight.repeats:
        return 0
    elapsed_ps = engine.clock.now_ps - flight.start_ps
    if engine.executor.alarm.has_rung():
        elapsed_ps += 1
    ended = flight.durations.steps_to_reach(elapsed_ps) - 1 if elapsed_ps > 0 else 0
    begun_ahead = int(scheduler.plans_ahead and scheduler.can_plan_ahead())
    return min(ended, flight.steps - 1) + begun_ahead
