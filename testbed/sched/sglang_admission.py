"""The budget of a pass over SGLang's queue (PrefillAdder and PrefillBudget of release 0.5.23)."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from testbed.core.sequence import SequenceGroup
from testbed.core.slots import CacheHit, ceil_div
from testbed.memory.capabilities import Capabilities
from testbed.sched.sglang_requests import MOST_RESERVED, DeclaredOutputs


class Verdict(Enum):
    """The answer to one request of a pass, which continues or ends. FULL: memory lacks, so the
    queue is closed until a request leaves the batch. SPENT: the tokens of this pass are spent.
    """

    GOES_ON = "goes on"
    FULL = "full"
    SPENT = "spent"


class Selected(NamedTuple):
    """A group that computes `new` tokens behind num_cached ones; `hit` is pinned."""

    group: SequenceGroup
    new: int
    num_cached: int
    hit: CacheHit
    is_chunk: bool


@dataclass(frozen=True)
class PassLimits:
    """The limits of a pass: its prompt tokens, those of a chunk (None: prompts are whole), and its
    requests.

    The names are SGLang's.
    """

    max_prefill_tokens: int
    chunked_prefill_size: int | None
    prefill_max_requests: int | None


class Admission:
    """One pass.

    A request is admitted if its uncached tokens, the output that it declares and a page fit beside
    what running requests may still generate. Its hit counts as locked while it is asked.

    Attributes:
        selected: the groups that the pass computes, in order.
    """

    def __init__(
        self,
        memory: Capabilities,
        outputs: DeclaredOutputs,
        page_size: int,
        limits: PassLimits,
        num_decodes: int,
    ) -> None:
        """num_decodes: those that share the iteration with its prompts."""
        self.memory = memory
        self.outputs = outputs
        self.page_size = page_size
        self.max_requests = limits.prefill_max_requests
        self.input_left = limits.max_prefill_tokens - num_decodes
        chunk = limits.chunked_prefill_size
        self.chunk_left = None if chunk is None else chunk - num_decodes
        self.reserved: float = num_decodes  # what is allocated in this pass, and the future
        self.allocated = num_decodes  # the first alone
        self.selected: list[Selected] = []

    def reserve_future(self, running: Collection[SequenceGroup], ratio: float) -> None:
        """Set aside the share `ratio` of what each running group may still generate."""
        self.reserved += sum([self.outputs.left(group) * ratio for group in running])

    @property
    def remaining(self) -> float:
        """Slots that are neither locked nor reserved."""
        return self._available() - self.reserved

    def verdict(self) -> Verdict:
        """The verdict on the next request (budget_state). Allocated tokens are reserved too."""
        if self.remaining <= 0:
            return Verdict.FULL
        if self.input_left <= 0 or (self.chunk_left is not None and self.chunk_left <= 0):
            return Verdict.SPENT
        return Verdict.GOES_ON

    def go_on(self, group: SequenceGroup, hit: CacheHit, most: int | None) -> None:
        """The unfinished prompt: its next chunk, whatever memory there is, of at most `most` tokens
        (add_chunked_req).
        """
        assert self.chunk_left is not None, "prompts are cut into chunks"
        left, num_stored = group.todo[0].new, group.todo[0].num_stored
        limit = min(self.chunk_left, int(self.remaining))
        limit = limit if limit > 0 else self.chunk_left
        new = min(left, limit if most is None else min(limit, most))
        self._select(Selected(group, new, num_stored, hit, new < left))

    def ask(self, group: SequenceGroup, hit: CacheHit) -> Verdict:
        """Select the group if it is admitted (add_one_req)."""
        if self.max_requests is not None and len(self.selected) >= self.max_requests:
            return Verdict.SPENT
        if self.memory.pins_hits is not None:
            self.memory.pins_hits.pin(hit)
        chosen = self.choose(group, hit)
        below = hit.num_below(group.prefill_len)
        if (
            isinstance(chosen, Selected)
            and self.memory.loads_hits is not None
            and any(below.values())
        ):
            hit = self.memory.loads_hits.load_hit(group.sequences[0], hit)
            chosen = self._with_loaded(chosen, hit)
        if isinstance(chosen, Selected):
            self._select(chosen)
            return self.verdict()
        if self.memory.pins_hits is not None:
            self.memory.pins_hits.unpin(hit)
        return chosen

    def _with_loaded(self, chosen: Selected, hit: CacheHit) -> Selected | Verdict:
        """The same choice if all was loaded that it counts on, else another one."""
        if hit.num_cached(chosen.group.prefill_len) == chosen.num_cached:
            return chosen._replace(hit=hit)
        return self.choose(chosen.group, hit)

    def choose(self, group: SequenceGroup, hit: CacheHit) -> Selected | Verdict:
        """The tokens that the group would compute (_select_prefill_admission); its hit is pinned.
        Tokens below the device need slots, but are not computed.
        """
        outputs, cached = self.outputs, hit.num_cached(group.prefill_len)
        new = group.prefill_len - cached
        future = min(max(outputs.declared(group) - group.num_generated, 0), MOST_RESERVED)
        if new + future + self.page_size >= self.remaining:
            return Verdict.FULL
        below = sum(hit.num_below(group.prefill_len).values())
        cached, new = cached + below, new - below
        if self.chunk_left is None:
            if self.selected and self.in_pages(new) >= self.input_left:
                return Verdict.SPENT
        elif self.in_pages(new) > self.chunk_left:
            size = self.page_size
            end = (cached + self.chunk_left // size * size) // size * size
            if end <= cached:
                return Verdict.SPENT
            return Selected(group, end - cached, cached, hit, True)
        return Selected(group, new, cached, hit, False)

    def in_pages(self, num_tokens: int) -> int:
        """The tokens of as many whole pages."""
        return ceil_div(num_tokens, self.page_size) * self.page_size

    def _select(self, chosen: Selected) -> None:
        """Charge the budgets (_update_prefill_budget)."""
        self.selected.append(chosen)
        computed = self.in_pages(chosen.new)
        future = min(self.outputs.declared(chosen.group), MOST_RESERVED)
        self.allocated += computed + self.page_size
        self.reserved += computed + self.page_size + (0 if chosen.is_chunk else future)
        self.input_left -= computed
        if self.chunk_left is not None:
            self.chunk_left -= computed

    def _available(self) -> int:
        used = self.memory.policy.usage()
        return used.free + used.cached


class AdmissionOfFixedOutputs(Admission):
    """Without a tree, if outputs have the declared length (add_one_req_ignore_eos): the requests
    end in the order of what is left of their outputs, and at no end may memory lack.
    """

    def reserve_future(self, running: Collection[SequenceGroup], ratio: float) -> None:
        super().reserve_future(running, ratio)
        self._running = running
        self._states: list[tuple[int, int]] | None = None

    def choose(self, group: SequenceGroup, hit: CacheHit) -> Selected | Verdict:
        new = group.prefill_len
        paged = self.in_pages(new) + self.page_size
        current = self._available() - self.allocated
        if paged > min(current, self.remaining):
            return Verdict.FULL
        self._note(group)
        if not self._last_until_each_end(current - paged):
            return Verdict.FULL
        if self.chunk_left is None or new <= self.chunk_left:
            return Selected(group, new, 0, hit, False)
        if self.chunk_left <= 0:
            return Verdict.SPENT
        return Selected(group, self.chunk_left, 0, hit, True)

    def _last_until_each_end(self, free: int) -> bool:
        """True if a token stays free for each request until it ends, and gives back its own."""
        assert self._states is not None, "noted before"
        freed = 0
        for i, (left, occupied) in enumerate(self._states):
            alive = len(self._states) - i
            if free + freed - left * alive <= alive:
                return False
            freed += occupied
        return True

    def _note(self, group: SequenceGroup) -> None:
        """List what is left of the group's output, and what it occupies, by what is left. One with
        more than all others comes before the last of them, as in SGLang.
        """
        if self._states is None:
            others = [group, *self._running, *[chosen.group for chosen in self.selected]]
            self._states = [state for other in others for state in self._state_of(other)]
            self._states.sort(key=lambda state: state[0])
            return
        for left, occupied in self._state_of(group):
            larger = [i for i, state in enumerate(self._states) if left <= state[0]]
            place = larger[0] if larger else max(len(self._states) - 1, 0)
            self._states.insert(place, (left, occupied))

    def _state_of(self, group: SequenceGroup) -> list[tuple[int, int]]:
        generated = self.outputs.generated(group)
        left = self.outputs.declared(group) - generated
        return [(left, group.request.prompt_len + generated)] if left > 0 else []
