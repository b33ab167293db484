"""Transfers in the background: the links between tiers, and between engines."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from testbed.core.slots import DEVICE, Transfer
from testbed.cost.model import UNBOUNDED, CostModel, counted
from testbed.engine.clock import Clock


@dataclass(slots=True)
class Flow:
    """A transfer that has left_ps picoseconds to go if it had the link to itself."""

    move_id: int
    is_load: bool
    left_ps: int


@dataclass(slots=True)
class Link:
    """The transfers of one link, in both directions.

    Loads share the link equally; while there are any, stores wait, and then share it too. Every
    picosecond of a share is a whole one: what dividing leaves over is lost.
    """

    flows: list[Flow] = field(default_factory=list)
    since_ps: int = 0

    def served(self) -> list[Flow]:
        return [flow for flow in self.flows if flow.is_load] or self.flows

    @property
    def next_ps(self) -> int:
        """The landing of the next transfer if none begins before."""
        served = self.served()
        return (
            self.since_ps + len(served) * min(flow.left_ps for flow in served)
            if served
            else UNBOUNDED
        )

    def begin(self, flow: Flow, now_ps: int) -> None:
        """One transfer more; `land` was called up to now."""
        self._share_until(now_ps)
        self.flows.append(flow)

    def drop(self, move_id: int, now_ps: int) -> None:
        """A transfer less; `land` was called up to now."""
        self._share_until(now_ps)
        self.flows = [flow for flow in self.flows if flow.move_id != move_id]

    def _share_until(self, now_ps: int) -> None:
        served = self.served()
        for flow in served:
            flow.left_ps -= (now_ps - self.since_ps) // len(served)
        self.since_ps = now_ps

    def land(self, now_ps: int) -> list[int]:
        """The transfers that have landed by now, in order."""
        landed: list[int] = []
        while self.next_ps <= now_ps:
            served = self.served()
            self.since_ps, least = self.next_ps, min(flow.left_ps for flow in served)
            for flow in served:
                flow.left_ps -= least
            landed += [flow.move_id for flow in served if not flow.left_ps]
            self.flows = [flow for flow in self.flows if flow.left_ps or flow not in served]
        return landed


class SharedLink:
    """A link on the clock, which one engine uses or several: each transfer gets its share, and its
    callback is called when it has landed.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._link = Link()
        self._on_landed: dict[int, Callable[[], None]] = {}
        self._num_begun = 0

    def begin(
        self,
        left_ps: int,
        on_landed: Callable[[], None],
        *,
        is_load: bool = True,
        latency_ps: int = 0,
    ) -> int:
        """Begin a transfer that takes left_ps by itself, after a latency in which it does not use
        the link; returns its number.
        """
        number = self._num_begun
        self._num_begun += 1
        self._on_landed[number] = on_landed
        flow = Flow(number, is_load, max(left_ps, 1))
        if latency_ps:
            self._clock.call_at(self._clock.now_ps + latency_ps, lambda: self._begin(flow))
        else:
            self._begin(flow)
        return number

    def drop(self, number: int) -> None:
        """The transfer ends without having landed, if it has not landed yet."""
        if self._on_landed.pop(number, None) is not None:
            self._land()
            self._link.drop(number, self._clock.now_ps)
            self._expect()

    def _begin(self, flow: Flow) -> None:
        if flow.move_id in self._on_landed:
            self._land()
            self._link.begin(flow, self._clock.now_ps)
            self._expect()

    def _expect(self) -> None:
        next_ps = self._link.next_ps
        if next_ps < UNBOUNDED:
            self._clock.call_at(next_ps, self._wake)

    def _wake(self) -> None:
        if self._link.next_ps <= self._clock.now_ps:
            self._land()
            self._expect()

    def _land(self) -> None:
        for number in self._link.land(self._clock.now_ps):
            self._on_landed.pop(number)()


NO_LINKS: Mapping[str, SharedLink] = MappingProxyType({})


class Links:
    """The transfers of one engine, each on the link of its tier; `on_landed` is called when one has
    landed, whose id is then in `landed`.

    A tier has one link for both directions. shared: the links, by tier, that other engines use too;
    all others are the engine's own. Not modelled: that transfers slow down what the device computes
    meanwhile (mostly by less than 10%; `kernels/results/h200-profiles.md`), and that swaps, whose
    time is part of an iteration, may use the same wires.
    """

    def __init__(
        self,
        clock: Clock,
        cost: CostModel,
        on_landed: Callable[[], None],
        shared: Mapping[str, SharedLink] = NO_LINKS,
    ) -> None:
        self.landed: list[int] = []
        self._clock = clock
        self._cost = cost
        self._on_landed = on_landed
        self._links = dict(shared)
        self._pending: dict[int, tuple[SharedLink, int]] = {}

    @property
    def num_pending(self) -> int:
        """Transfers that are under way."""
        return len(self._pending)

    def begin(self, transfers: Iterable[Transfer]) -> None:
        for move_id, move in transfers:
            source, target, _ = move
            is_load = target == DEVICE
            link = self._link_of(source if is_load else target)
            left_ps = self._cost.transfer(counted([move]))
            on_landed = partial(self._land, move_id)
            self._pending[move_id] = link, link.begin(left_ps, on_landed, is_load=is_load)

    def take_landed(self) -> list[int]:
        landed, self.landed = self.landed, []
        return landed

    def drop(self) -> None:
        """End every transfer that is on the way, since the engine has failed."""
        for link, number in self._pending.values():
            link.drop(number)
        self._pending.clear()

    def _link_of(self, tier: str) -> SharedLink:
        if tier not in self._links:
            self._links[tier] = SharedLink(self._clock)
        return self._links[tier]

    def _land(self, move_id: int) -> None:
        del self._pending[move_id]
        self.landed.append(move_id)
        self._on_landed()
