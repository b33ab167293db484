"""Engines that fail and come back: `engine 2 at 60 s, back at 90 s`."""

import re
from itertools import pairwise
from typing import NamedTuple

from testbed.core.errors import InputError
from testbed.core.units import LAST_S, PS
from testbed.engine.clock import Clock
from testbed.fleet.fleet import Fleet

NUMBER = r"\d+(?:\.\d+)?"
FAULT = re.compile(
    rf"engine (?P<engine>\d+) at (?P<down>{NUMBER}) s(?:, back at (?P<back>{NUMBER}) s)?"
)
HINT = 'give "engine 2 at 60 s" or "engine 2 at 60 s, back at 90 s", several with ; between'


class Fault(NamedTuple):
    """An engine, by its number from 0, that fails at down_ps and is back at back_ps, if ever."""

    engine: int
    down_ps: int
    back_ps: int | None


def parse_faults(text: str, num_engines: int) -> tuple[Fault, ...]:
    """The faults of a text, in order of time. Raises InputError for a text that says none, an
    engine that is not there, and times that contradict each other.
    """
    faults = sorted(
        (_parsed(part.strip(), text, num_engines) for part in text.split(";")),
        key=lambda fault: (fault.down_ps, fault.engine),
    )
    for engine in range(num_engines):
        own = [fault for fault in faults if fault.engine == engine]
        for fault, later in pairwise(own):
            if fault.back_ps is None or fault.back_ps >= later.down_ps:
                problem = f"engine {engine} fails again before it is back"
                raise _refusal(text, problem, "give times that follow each other")
    if {fault.engine for fault in faults if fault.back_ps is None} == set(range(num_engines)):
        raise _refusal(text, "no engine is left, so requests would never end", "let one come back")
    return tuple(faults)


def _parsed(part: str, text: str, num_engines: int) -> Fault:
    match = FAULT.fullmatch(part)
    if match is None:
        raise _refusal(text, f"{part!r} is no fault", HINT)
    engine, down_s = int(match["engine"]), float(match["down"])
    back_s = None if match["back"] is None else float(match["back"])
    if engine >= num_engines:
        known = f"the engines are 0 to {num_engines - 1}"
        raise _refusal(text, f"there is no engine {engine}", known)
    if max(down_s, back_s or 0.0) > LAST_S:
        raise _refusal(text, f"time ends at {LAST_S:,} s", "give earlier times")
    if back_s is not None and back_s <= down_s:
        raise _refusal(text, f"engine {engine} is back before it fails", "give a later time")
    back_ps = None if back_s is None else round(back_s * PS)
    return Fault(engine, round(down_s * PS), back_ps)


def _refusal(text: str, problem: str, remedy: str) -> InputError:
    return InputError(key="faults", value=text, problem=problem, remedy=remedy)


class Faults:
    """Lets the engines of a fleet fail and come back, each fault at its own times.

    A failure takes effect at the first iteration boundary at or after its time; from its time on
    the engine gets no request. A request that has lost its engine begins anew, so tokens that it
    had are computed again, and its first token is that of the engine which answers it.
    """

    def __init__(self, clock: Clock, fleet: Fleet, faults: tuple[Fault, ...]) -> None:
        self._clock = clock
        self._fleet = fleet
        self._faults = faults

    def start(self) -> None:
        for fault in self._faults:
            self._schedule(fault)

    def _schedule(self, fault: Fault) -> None:
        self._clock.call_at(fault.down_ps, lambda: self._fleet.fail(fault.engine))
        if fault.back_ps is not None:
            self._clock.call_at(fault.back_ps, lambda: self._fleet.bring_back(fault.engine))
