"""Several engines that share a clock, behind one door."""

from collections.abc import Callable, Iterable
from typing import Any

from testbed.core.request import PS, Request
from testbed.engine.clock import SharedClock
from testbed.engine.engine import Engine
from testbed.engine.listeners import Listener
from testbed.fleet.cache_index import CacheIndex
from testbed.fleet.routers.router import Router, routed
from testbed.fleet.routing_ahead import routed_ahead
from testbed.fleet.shared_tiers import SharedTiers
from testbed.fleet.views import EngineView

MakeEngine = Callable[[int], Engine]


class Replica:
    """The place of one engine: the engine that serves there now, and those that have failed."""

    def __init__(self, number: int, engine: Engine) -> None:
        self.number = number
        self.engines = [engine]
        self.is_up = True
        self.has_failed = False  # the engine has ended; while it is down but not ended, it is False
        self.returns = False  # as soon as the engine has ended

    @property
    def engine(self) -> Engine:
        return self.engines[-1]


class Fleet(Listener):
    """Sends each request to the engine that the router chooses, and says when it has ended.

    It has the calls of an engine by which clients submit and cancel. A fleet of one engine asks no
    router. Requests that arrive while no engine is up wait here. A request whose engine fails is
    routed anew, and begins anew.
    """

    def __init__(
        self,
        clock: SharedClock,
        make_engine: MakeEngine,
        num_engines: int,
        router: Router,
        tiers: SharedTiers,
    ) -> None:
        """make_engine: a new engine of a number, called again when one comes back after a fault."""
        self.clock = clock
        self.router = router
        self.tiers = tiers
        self.processes: list[Any] = []
        self.num_arrived = 0
        self._make_engine = make_engine
        self._to_cancel: set[int] = set()  # as soon as they have another engine
        self._listeners: list[Listener] = []
        self._held: dict[int, Request] = {}
        self._place: dict[int, Replica] = {}  # of each request that an engine has
        self._is_closed = False
        self._end_ps = 0  # of the latest request that has ended
        self._index: CacheIndex | None = None
        if num_engines > 1 and self.router.cache_age_s is not None:
            self._index = CacheIndex(self.clock, round(self.router.cache_age_s * PS))
        numbers = range(num_engines)
        self.replicas = [Replica(number, self._new_engine(number)) for number in numbers]
        self._views = [self._view_of(replica) for replica in self.replicas]
        self._offered = list(self._views)  # of the engines that are up

    def start(self) -> None:
        """All engines begin to serve."""
        for replica in self.replicas:
            self._start(replica)

    @property
    def has_ended(self) -> bool:
        """True if no request will come, and every one has ended."""
        return self._is_closed and not self._place and not self._held

    def listen(self, listener: Listener) -> None:
        """Call the listener at the end of each request."""
        self._listeners.append(listener)

    def submit(self, request: Request) -> bool:
        """A request arrives now. False if its engine rejects it at once."""
        self.num_arrived += 1
        return self._route(request)

    def follow(self, requests: Iterable[Request]) -> None:
        """All requests of an open loop, as if each were submitted at its own time, for a router
        that looks at no engine: each engine takes its own. None may fail, and nothing else may see
        the fleet meanwhile.
        """
        shares = routed_ahead(self.router, requests, len(self.replicas))
        for replica, share in zip(self.replicas, shares, strict=True):
            self.num_arrived += len(share)
            self._place |= {request.request_id: replica for request in share}
            replica.engine.follow(share, closes=False)
        self.close()

    def cancel(self, request_id: int) -> bool:
        """See Engine.cancel. A request whose engine has failed is cancelled by its next engine."""
        replica = self._place.get(request_id)
        if request_id in self._held or (replica is not None and not replica.is_up):
            self._to_cancel.add(request_id)
            return True
        return replica is not None and replica.engine.cancel(request_id)

    def close_session(self, session: int) -> None:
        """See Engine.close_session: any engine may have served requests of the session."""
        for replica in self.replicas:
            replica.engine.close_session(session)

    def close(self) -> None:
        """No request will be submitted any more, but for one that may be submitted right now."""
        self._is_closed = True
        self.clock.call_at(self.clock.now_ps, self._close_engines_at_end)

    def fail(self, number: int) -> None:
        """The engine gets no request any more, and ends at its next iteration boundary with what
        its memory stores; its requests go to others.
        """
        replica = self.replicas[number]
        if self.has_ended or not replica.is_up:
            return
        replica.is_up = False
        self._offer()
        if self._index is not None:
            self._index.lost(number)
        replica.engine.fail(lambda requests: self._failed(replica, requests))

    def bring_back(self, number: int) -> None:
        """A new engine, whose memory is empty, takes the place of one that has failed."""
        replica = self.replicas[number]
        if self.has_ended or replica.is_up:
            return
        replica.returns = not replica.has_failed
        if replica.has_failed:
            self._replace(replica)

    def on_finished(self, request_id: int, time_ps: int) -> None:
        self._ended(request_id, time_ps, lambda each: each.on_finished(request_id, time_ps))

    def on_rejected(self, request_id: int, reason: str, time_ps: int) -> None:
        self._ended(request_id, time_ps, lambda each: each.on_rejected(request_id, reason, time_ps))

    def on_cancelled(self, request_id: int, time_ps: int) -> None:
        self._ended(request_id, time_ps, lambda each: each.on_cancelled(request_id, time_ps))

    def _ended(self, request_id: int, time_ps: int, tell: Callable[[Listener], None]) -> None:
        self._forget(request_id, time_ps)
        for listener in self._listeners:
            tell(listener)
        self._close_engines_at_end()

    def _route(self, request: Request) -> bool:
        if not self._offered:
            self._held[request.request_id] = request
            return True
        view = self._offered[0]
        if len(self.replicas) > 1:
            view = routed(self.router, request.incoming, self._offered)
        replica = self.replicas[view.number]
        self._place[request.request_id] = replica
        is_accepted = replica.engine.submit(request)
        if request.request_id in self._to_cancel:
            replica.engine.cancel(request.request_id)
        return is_accepted

    def _forget(self, request_id: int, time_ps: int) -> None:
        del self._place[request_id]
        self._end_ps = max(self._end_ps, time_ps)
        self._to_cancel.discard(request_id)

    def _failed(self, replica: Replica, requests: list[Request]) -> None:
        """The engine has ended, and these requests need another one."""
        replica.has_failed = True
        self.tiers.leave(replica.engine)
        for request in requests:
            del self._place[request.request_id]
            self._held[request.request_id] = request
        if replica.returns:
            self._replace(replica)
        self._route_held()
        self._close_engines_at_end()

    def _replace(self, replica: Replica) -> None:
        replica.has_failed = replica.returns = False
        replica.is_up = True
        replica.engines.append(self._new_engine(replica.number))
        self._views[replica.number] = self._view_of(replica)
        self._start(replica)
        self._offer()
        self._route_held()

    def _route_held(self) -> None:
        if self._offered:
            held, self._held = self._held, {}
            for request in held.values():
                self._route(request)

    def _offer(self) -> None:
        self._offered = [self._views[replica.number] for replica in self.replicas if replica.is_up]

    def _view_of(self, replica: Replica) -> EngineView:
        if self._index is not None:
            self._index.follow(replica.number, replica.engine)
        return EngineView(replica.number, replica.engine, self._index)

    def _new_engine(self, number: int) -> Engine:
        engine = self._make_engine(number)
        engine.listen(self)
        self.tiers.join(engine)
        return engine

    def _start(self, replica: Replica) -> None:
        self.processes.append(self.clock.start(replica.engine.serve()))

    def _close_engines_at_end(self) -> None:
        if not self.has_ended:
            return
        if self._end_ps > self.clock.now_ps:  # engines that follow their arrivals are ahead
            self.clock.call_at(self._end_ps, self._close_engines_at_end)
            return
        for replica in self.replicas:
            replica.engine.close()
