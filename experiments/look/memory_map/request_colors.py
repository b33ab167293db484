"""The colour of the palette that each request of a memory map has."""

from collections import deque
from collections.abc import Sequence

from testbed.engine.memory_trace import Frame

NUM_HUES = 18  # of PALETTE in page/draw.js; colours from there on are lighter and darker ones


def request_colors(frames: Sequence[Frame]) -> dict[int, int]:
    """A number from 0 for each request, such that requests that hold memory in one frame have
    different ones: neighbours never look alike.

    A number that is free again is given away as late as possible, so that a request differs from
    the last holders of its blocks too.
    """
    held = [dict.fromkeys(of.request_id for of in frame.held.values()) for frame in frames]
    last_frame = {request: i for i, requests in enumerate(held) for request in requests}
    colors = dict[int, int]()
    free, num_colors = deque(range(NUM_HUES)), NUM_HUES
    for i, requests in enumerate(held):
        for request in requests:
            if request in colors:
                continue
            if not free:
                free.append(num_colors)
                num_colors += 1
            colors[request] = free.popleft()
        free.extend(colors[request] for request in requests if last_frame[request] == i)
    return colors
