"""One request on its way through a prefill engine to a decode engine."""

from collections.abc import Iterable
from enum import Enum

from testbed.core.request import Request
from testbed.core.sequence import SequenceGroup
from testbed.core.slots import Copy, copies_between
from testbed.engine.engine import Engine
from testbed.fleet.handovers.rule import Computed, Sending
from testbed.sched.handed_over import abandon


class Stage(Enum):
    """The stage of a request before it decodes."""

    RESERVING = "waits for the decode engine's slots, before its prefill"
    PREFILLING = "is with the prefill engine"
    WAITING = "is computed, and waits for the decode engine's slots"
    SENDING = "is on the way, and has slots at both ends"


class Handover:
    """A request, from its arrival until it decodes.

    Attributes:
        source: the prefill engine.
        target: the decode engine.
        group: its sequences at the decode engine.
        prefilled: those at the prefill engine, which it leaves with a lease.
        first_ps: when its first token was there.
        sent_ps: when what was left was given to the link.
        link_ps: picoseconds that the link then took.
        parts: what iterations have computed of the prompt.
        transfer: the number of its transfer, while it is on the way.
        is_cancelled: its client has gone.
        is_orphan: the decode engine has failed while the prefill engine computes.
        is_over: it was given up, and later events of its engines are ignored.
    """

    def __init__(self, request: Request, source: Engine, target: Engine) -> None:
        self.request = request
        self.source = source
        self.target = target
        self.group = target.scheduler.new_group(request.incoming)
        self.stage = Stage.PREFILLING
        self.prefilled: SequenceGroup | None = None
        self.first_ps = self.sent_ps = self.link_ps = 0
        self.parts: list[Computed] = []
        self.transfer: int | None = None
        self.is_cancelled = False
        self.is_orphan = False
        self.is_over = False

    @property
    def request_id(self) -> int:
        return self.request.request_id

    @property
    def prefill_request(self) -> Request:
        """The request to the prefill engine: the first token."""
        return self.request._replace(output_len=1)

    @property
    def has_slots(self) -> bool:
        """True if the decode engine has slots for it."""
        return self.group in self.target.scheduler.state.reserved

    def computed(self, part: Computed) -> None:
        """An iteration has computed a part of the prompt; after a preemption it begins anew."""
        self.parts = [old for old in self.parts if old.num_stored < part.num_stored]
        self.parts.append(part)

    def sending(self, slot_bytes: int, num_layers: int) -> Sending:
        """The tokens to send now: blocks of one size are cut into those of the other."""
        assert self.prefilled is not None, "nothing is sent of a prompt before it is computed"
        (source,), (target,) = self.prefilled.resident, self.group.resident
        num_tokens, num_skipped = self.request.prompt_len, target.num_stored
        copies = copies_between(
            self.source.scheduler.policy.table(source),
            self.target.scheduler.policy.table(target),
            num_tokens,
        )
        num_extents = num_runs(copies, num_skipped)
        parts = tuple(self.parts)
        return Sending(num_tokens, num_skipped, num_extents, slot_bytes, num_layers, parts)

    def end_lease(self) -> None:
        """The prefill engine needs the slots no longer; they are free at its next boundary."""
        prefilled, self.prefilled = self.prefilled, None
        if prefilled is not None:
            state = self.source.scheduler.state
            self.source.change(lambda now_ps: state.end_leases([prefilled]))

    def abandon_slots(self) -> None:
        """The decode engine's slots, if there are any, are free at its next boundary."""
        state = self.target.scheduler.state
        if self.has_slots:
            self.target.change(lambda now_ps: abandon(state, self.group))


def num_runs(copies: Iterable[Copy], num_skipped: int) -> int:
    """Runs of tokens behind the first num_skipped that are adjacent on both sides."""
    runs = num_tokens = 0
    next_slots = (-1, -1)
    for src, dst, length in copies:
        num_tokens += length
        if num_tokens <= num_skipped:
            continue
        runs += (src, dst) != next_slots
        next_slots = src + length, dst + length
    return runs
