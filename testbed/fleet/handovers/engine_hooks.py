"""The two sides of a hand-over, each beside one engine."""

from collections import deque
from collections.abc import Callable, Mapping

from testbed.core.errors import PlugInError
from testbed.core.request import Request
from testbed.core.sequence import SequenceGroup
from testbed.core.slots import Refusal
from testbed.engine.engine import Engine
from testbed.engine.handover_hooks import HandoverHooks
from testbed.fleet.handovers.handover import Handover
from testbed.fleet.handovers.rule import Computed
from testbed.sched.handed_over import reserve
from testbed.sched.plan import Plan


class PrefillHooks(HandoverHooks):
    """Follows what its engine computes. on_prefilled says whether another engine answers."""

    def __init__(
        self, handovers: Mapping[int, Handover], on_prefilled: Callable[[SequenceGroup], bool]
    ) -> None:
        super().__init__()
        self._handovers = handovers
        self._on_prefilled = on_prefilled

    def computed(self, plan: Plan, start_ps: int, end_ps: int) -> None:
        for chunk in plan.chunks:
            handover = self._handovers[chunk.group.request_id]
            handover.computed(Computed(chunk.num_stored, chunk.new, start_ps, end_ps))

    def sent(self, request: Request) -> Request:
        handover = self._handovers.get(request.request_id)
        return request if handover is None else handover.request

    def takes(self, group: SequenceGroup) -> bool:
        return self._on_prefilled(group)


class DecodeHooks(HandoverHooks):
    """Reserves slots for those that come, first come, first served, behind what the engine has
    preempted. So the engine's pool, and its limit on sequences, bound what may be on the way.
    """

    def __init__(
        self,
        engine: Engine,
        on_reserved: Callable[[Handover], None],
        on_refused: Callable[[Handover, str], None],
    ) -> None:
        super().__init__()
        self.queue: deque[Handover] = deque()
        self._engine = engine
        self._on_reserved = on_reserved
        self._on_refused = on_refused

    def wait(self, handover: Handover) -> None:
        """The hand-over needs slots, from the next boundary on."""
        self.queue.append(handover)
        self._engine.change(lambda now_ps: None)

    def give_up(self, handover: Handover) -> None:
        """The hand-over, if it waits, needs none: the next one may get some."""
        if handover in self.queue:
            self.queue.remove(handover)
            self._engine.change(lambda now_ps: None)

    def before_plan(self) -> None:
        state = self._engine.scheduler.state
        while self.queue and not state.waiting and not state.swapped and self._has_room():
            handover = self.queue[0]
            if state.refused is handover.group:
                return
            answers = reserve(state, handover.group)
            if not isinstance(answers, Refusal):
                self.queue.popleft()
                self._on_reserved(handover)
            elif answers.is_final:
                self.queue.popleft()
                self._on_refused(handover, answers.reason)
            else:
                self._check_refusal(handover)
                return

    def _has_room(self) -> bool:
        scheduler = self._engine.scheduler
        assert scheduler.limits is not None, "any other one is refused"
        state, limit = scheduler.state, scheduler.limits.max_num_seqs
        return state.num_seqs + len(state.reserved) < limit

    def _check_refusal(self, handover: Handover) -> None:
        state = self._engine.scheduler.state
        is_waiting = state.running or state.reserved or self._engine.executor.has_transfers
        if not is_waiting:
            stuck = f"request {handover.request_id} ({handover.request.prompt_len} tokens)"
            raise PlugInError(f"{state.memory.name} refuses {stuck} though nothing runs")
