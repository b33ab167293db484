"""A fleet whose first engines only prefill."""

from collections.abc import Sequence
from typing import NamedTuple

from testbed.core.request import Request
from testbed.core.sequence import SequenceGroup
from testbed.engine.clock import SharedClock
from testbed.engine.engine import Engine
from testbed.engine.links import SharedLink
from testbed.fleet.fleet import Fleet, MakeEngine, Replica
from testbed.fleet.handovers.engine_hooks import DecodeHooks, PrefillHooks
from testbed.fleet.handovers.handover import Handover, Stage
from testbed.fleet.handovers.rule import HandoverRule
from testbed.fleet.routers.router import Router, routed
from testbed.fleet.shared_tiers import SharedTiers
from testbed.fleet.views import EngineView
from testbed.sched.handed_over import abandon


class Split(NamedTuple):
    """A fleet that prefills apart: by its first num_prefill engines, which hand over by `rule`.

    decode_router: chooses the decode engine. slot_bytes, num_layers: of the model's K and V.
    """

    num_prefill: int
    rule: HandoverRule
    decode_router: Router
    slot_bytes: int
    num_layers: int


class SplitFleet(Fleet):
    """Each request gets a prefill and a decode engine when it arrives. The first token comes from
    the prefill engine; the rest begins when the prompt has landed.

    A request that was cancelled on the way leaves at once, but its slots stay at both ends until
    what is on the way has landed. If an engine fails, the hand-overs from and to it begin anew; one
    that is being prefilled does so when that has ended.
    """

    def __init__(
        self,
        split: Split,
        clock: SharedClock,
        make_engine: MakeEngine,
        num_engines: int,
        router: Router,
        tiers: SharedTiers,
    ) -> None:
        """The arguments behind `split` are those of Fleet."""
        self.times_ps: list[tuple[int, int]] = []  # of hand-overs: in all, and on the link
        self._split = split
        self._handovers: dict[int, Handover] = {}
        self._links: dict[Engine, SharedLink] = {}
        self._decode_hooks: dict[Engine, DecodeHooks] = {}
        super().__init__(clock, make_engine, num_engines, router, tiers)

    def cancel(self, request_id: int) -> bool:
        handover = self._handovers.get(request_id)
        if handover is None:
            return super().cancel(request_id)
        handover.is_cancelled = True
        if handover.stage is Stage.PREFILLING:
            return super().cancel(request_id)
        self._cancel_on_the_way(handover)
        return True

    @property
    def bandwidth(self) -> float:
        """Bytes/s of each prefill engine's link."""
        return self._split.rule.bandwidth

    def _new_engine(self, number: int) -> Engine:
        engine = super()._new_engine(number)
        if number < self._split.num_prefill:
            engine.scheduler.state.leases_all = True
            engine.take_part(PrefillHooks(self._handovers, self._prefilled))
            self._links[engine] = SharedLink(self.clock)
        else:
            self._decode_hooks[engine] = DecodeHooks(engine, self._reserved, self._refused)
            engine.take_part(self._decode_hooks[engine])
        return engine

    def _route(self, request: Request) -> bool:
        num_prefill = self._split.num_prefill
        sources = [view for view in self._offered if view.number < num_prefill]
        targets = [view for view in self._offered if view.number >= num_prefill]
        if not (sources and targets):
            self._held[request.request_id] = request
            return True
        source = self._choose(self.router, request, sources)
        target = self._choose(self._split.decode_router, request, targets)
        for replica in (source, target):
            if replica.engine.never_fits(request):
                self._place[request.request_id] = replica
                return replica.engine.submit(request)
        self._begin_handover(request, source, target)
        if request.request_id in self._to_cancel:
            self.cancel(request.request_id)
        return True

    def _choose(self, router: Router, request: Request, views: Sequence[EngineView]) -> Replica:
        view = views[0]
        if len(views) > 1:
            view = routed(router, request.incoming, views)
        return self.replicas[view.number]

    def _begin_handover(self, request: Request, source: Replica, target: Replica) -> None:
        handover = Handover(request, source.engine, target.engine)
        self._handovers[request.request_id] = handover
        self._place[request.request_id] = source
        hooks = self._decode_hooks[target.engine]
        hooks.expected[request.request_id] = request.prompt_len
        if self._split.rule.reserves:
            handover.stage = Stage.RESERVING
            hooks.wait(handover)
        else:
            source.engine.submit(handover.prefill_request)

    def _reserved(self, handover: Handover) -> None:
        """The decode engine has slots for the hand-over."""
        if handover.stage is Stage.RESERVING:
            handover.stage = Stage.PREFILLING
            handover.source.submit(handover.prefill_request)
        else:
            self._send(handover)

    def _prefilled(self, group: SequenceGroup) -> bool:
        """A prefill engine has the first token; whether a decode engine goes on."""
        handover = self._handovers[group.request_id]
        handover.prefilled, handover.first_ps = group, self.clock.now_ps
        handover.group.num_cached = group.num_cached  # which the decode engine's recorder keeps
        if handover.request.output_len == 1:
            handover.end_lease()
            return False
        handover.stage = Stage.WAITING
        if handover.is_cancelled:
            self._cancel_on_the_way(handover)
        elif handover.is_orphan:
            self._begin_anew([handover])
        elif handover.has_slots:
            self._send(handover)
        else:
            self._decode_hooks[handover.target].wait(handover)
        return True

    def _send(self, handover: Handover) -> None:
        rule, split = self._split.rule, self._split
        handover.stage, handover.sent_ps = Stage.SENDING, self.clock.now_ps
        left_ps = rule.left_ps(handover.sending(split.slot_bytes, split.num_layers))
        handover.transfer = self._links[handover.source].begin(
            left_ps, lambda: self._landed(handover), latency_ps=rule.latency_ps
        )

    def _landed(self, handover: Handover) -> None:
        handover.link_ps = self.clock.now_ps - handover.sent_ps
        handover.end_lease()
        handover.target.change(lambda now_ps: self._take_over(handover))

    def _take_over(self, handover: Handover) -> None:
        """A boundary of the decode engine, whose slots have the prompt."""
        if handover.is_over:
            return
        if handover.is_cancelled:
            abandon(handover.target.scheduler.state, handover.group)
            return
        self._leave(handover)
        self.times_ps.append((self.clock.now_ps - handover.first_ps, handover.link_ps))
        self._place[handover.request_id] = next(
            replica for replica in self.replicas if replica.engine is handover.target
        )
        handover.target.take_over(handover.request, handover.group, handover.first_ps)

    def _cancel_on_the_way(self, handover: Handover) -> None:
        """The request leaves at once; what is being sent lands all the same."""
        recorder, now_ps = handover.target.recorder, self.clock.now_ps
        if handover.stage is Stage.RESERVING:
            recorder.totals.arrived += 1
        else:
            recorder.taken_over(handover.request, handover.first_ps, now_ps)
            handover.group.generate()
        recorder.cancelled(handover.request, handover.group, now_ps)
        self._leave(handover)
        if handover.stage is not Stage.SENDING:
            self._give_up(handover)
        self.on_cancelled(handover.request_id, now_ps)

    def _refused(self, handover: Handover, reason: str) -> None:
        """The decode engine could never have slots for the request."""
        recorder, now_ps = handover.target.recorder, self.clock.now_ps
        recorder.totals.arrived += 1
        recorder.rejected(handover.request, reason)
        self._leave(handover)
        self._give_up(handover)
        self.on_rejected(handover.request_id, reason, now_ps)

    def _leave(self, handover: Handover) -> None:
        """The request is no hand-over any more."""
        del self._handovers[handover.request_id]
        self._decode_hooks[handover.target].expected.pop(handover.request_id, None)

    def _give_up(self, handover: Handover) -> None:
        """Nothing of the hand-over stays at its engines, or on the way."""
        handover.is_over = True
        self._decode_hooks[handover.target].give_up(handover)
        if handover.transfer is not None:
            self._links[handover.source].drop(handover.transfer)
        handover.end_lease()
        handover.abandon_slots()

    def _forget(self, request_id: int, time_ps: int) -> None:
        super()._forget(request_id, time_ps)
        handover = self._handovers.get(request_id)
        if handover is not None:  # it has ended at the prefill engine
            self._leave(handover)
            self._give_up(handover)

    def _failed(self, replica: Replica, requests: list[Request]) -> None:
        engine, lost = replica.engine, list[Handover]()
        for handover in self._handovers.values():
            if handover.source is engine:
                lost.append(handover)
            elif handover.target is engine and handover.stage is Stage.PREFILLING:
                handover.is_orphan = True
            elif handover.target is engine:
                lost.append(handover)
        ids = {handover.request_id for handover in lost}
        self._begin_anew(lost)
        super()._failed(replica, [request for request in requests if request.request_id not in ids])

    def _begin_anew(self, handovers: Sequence[Handover]) -> None:
        """These requests need other engines."""
        for handover in handovers:
            self._leave(handover)
            self._give_up(handover)
            del self._place[handover.request_id]
            self._held[handover.request_id] = handover.request
        self._route_held()
