"""Requests on as few lanes as it takes so that no two on a lane overlap."""

import heapq
from collections.abc import Sequence

from experiments.timeline.phases import Life


def lanes(lives: Sequence[Life]) -> list[int]:
    """The lane of each request, the lowest that is free at its arrival; `lives` are in order of arrival."""
    free: list[int] = []
    taken: list[tuple[int, int]] = []
    found = []
    for life in lives:
        while taken and taken[0][0] <= life.request.arrival_ps:
            heapq.heappush(free, heapq.heappop(taken)[1])
        lane = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (end_ps(life), lane))
        found.append(lane)
    return found


def end_ps(life: Life) -> int:
    """When the request was done, turned away or cut off."""
    return life.phases[-1].end_ps if life.phases else life.request.arrival_ps
