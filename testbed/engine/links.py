"""Transfers in the background: the links between the tiers of one engine."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

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
    """The transfers of one tier, in both directions.

    Loads share the link equally; while there are any, stores wait, and then share it too. Every
    picosecond of a share is a whole one: what dividing leaves over is lost.
    """

    flows: list[Flow] = field(default_factory=list)
    since_ps: int = 0

    def served(self) -> list[Flow]:
        return [flow for flow in self.flows if flow.is_load] or self.flows

    @property
    def next_ps(self) -> int:
        """When the next transfer lands if none begins before."""
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
        landed = list[int]()
        while self.next_ps <= now_ps:
            served = self.served()
            self.since_ps, least = self.next_ps, min(flow.left_ps for flow in served)
            for flow in served:
                flow.left_ps -= least
            landed += [flow.move_id for flow in served if not flow.left_ps]
            self.flows = [flow for flow in self.flows if flow.left_ps or flow not in served]
        return landed


class Links:
    """The links of one engine, by tier; `on_landed` is called when a transfer has landed, whose id
    is then in `landed`.

    A tier has one link for both directions. Not modelled: that transfers slow down what the device
    computes meanwhile (mostly by less than 10%; `kernels/results/h200-profiles.md`), and that
    swaps, whose time is part of an iteration, may use the same wires.
    """

    def __init__(self, clock: Clock, cost: CostModel, on_landed: Callable[[], None]) -> None:
        self.landed: list[int] = []
        self.num_pending = 0
        self.next_ps = UNBOUNDED
        self._clock = clock
        self._cost = cost
        self._on_landed = on_landed
        self._links: dict[str, Link] = {}

    def begin(self, transfers: Iterable[Transfer]) -> None:
        for move_id, move in transfers:
            source, target, _ = move
            flow = Flow(move_id, target == DEVICE, max(self._cost.transfer(counted([move])), 1))
            now_ps = self._clock.now_ps
            self._land(now_ps)
            self._links.setdefault(source if target == DEVICE else target, Link()).begin(
                flow, now_ps
            )
            self.num_pending += 1
            self._expect()

    def take_landed(self) -> list[int]:
        landed, self.landed = self.landed, []
        return landed

    def _expect(self) -> None:
        self.next_ps = min((link.next_ps for link in self._links.values()), default=UNBOUNDED)
        if self.next_ps < UNBOUNDED:
            self._clock.call_at(self.next_ps, self._wake)

    def _wake(self) -> None:
        if self.next_ps <= self._clock.now_ps:
            self._land(self._clock.now_ps)
            self._expect()

    def _land(self, now_ps: int) -> None:
        landed = [move_id for link in self._links.values() for move_id in link.land(now_ps)]
        self.num_pending -= len(landed)
        self.landed += landed
        if landed:
            self._on_landed()
