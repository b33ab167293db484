"""A router's index of the engines' prefix caches, by their own events, which may come late."""

from collections import deque
from functools import partial
from typing import NamedTuple

from testbed.core.errors import InputError
from testbed.core.request import Incoming
from testbed.engine.clock import Clock
from testbed.engine.engine import Engine
from testbed.memory.prefix_cache.prefix_index import OnCacheEvent
from testbed.memory.protocols import ReportsCache


class CacheEvent(NamedTuple):
    """At time_ps blocks with these codes became findable on an engine, or were dropped."""

    time_ps: int
    engine: int
    codes: list[int]
    is_stored: bool


class CacheIndex:
    """Blocks that each engine's cache had, age_ps picoseconds ago.

    Blocks are known by their chained hashes alone, as in real routers: two prompts with equal
    hashes would be taken for one.
    """

    def __init__(self, clock: Clock, age_ps: int) -> None:
        self._clock = clock
        self._age_ps = age_ps
        self._events: deque[CacheEvent] = deque()
        self._stored: dict[int, set[int]] = {}
        self._caches: dict[int, ReportsCache] = {}
        self._block_size: dict[int, int] = {}

    def follow(self, number: int, engine: Engine) -> None:
        """Update the index from now on by the engine's cache, which is empty."""
        memory = engine.scheduler.memory
        if memory.reports_cache is None:
            raise InputError(
                key="policy",
                value=memory.name,
                problem="says nothing of its cache to a router that reads caches",
                remedy="choose policy=prefix_caching, or another router",
            )
        self.lost(number)
        self._stored.setdefault(number, set())
        self._caches[number] = memory.reports_cache
        self._block_size[number] = memory.reports_cache.report_cache(self._listener(number))

    def lost(self, number: int) -> None:
        """Marks the engine as down, which a router knows at once: it forgets all of its cache."""
        others = [event for event in self._events if event.engine != number]
        self._events.clear()
        self._events.extend(others)
        self._stored.get(number, set()).clear()

    def num_cached(self, number: int, request: Incoming) -> int:
        """Leading tokens of the request's prompt in the engine's cache."""
        if request.prompt_ids is None:
            return 0
        self._catch_up()
        stored, num_blocks = self._stored[number], 0
        prompt = request.prompt_ids, request.tokens_per_id, request.prompt_len
        for code in self._caches[number].prompt_codes(*prompt):
            if code not in stored:
                break
            num_blocks += 1
        return num_blocks * self._block_size[number]

    def _listener(self, number: int) -> OnCacheEvent:
        clock, events = self._clock, self._events

        def queue(codes: list[int], is_stored: bool) -> None:
            events.append(CacheEvent(clock.now_ps, number, codes, is_stored))

        return queue if self._age_ps else partial(self._update, number)

    def _update(self, number: int, codes: list[int], is_stored: bool) -> None:
        if is_stored:
            self._stored[number].update(codes)
        else:
            self._stored[number].difference_update(codes)

    def _catch_up(self) -> None:
        events, until_ps = self._events, self._clock.now_ps - self._age_ps
        while events and events[0].time_ps <= until_ps:
            _, number, codes, is_stored = events.popleft()
            self._update(number, codes, is_stored)
