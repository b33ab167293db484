"""The progress of a long run: a line on standard error every ten seconds."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from testbed.sim.recorder import Recorder

SPEAK_S = 10.0


def watched(recorder: Recorder, num_requests: int) -> AbstractContextManager[None]:
    """While a simulation runs, print the number of requests that have finished or were rejected."""

    def ended() -> int:
        return recorder.totals.finished + recorder.totals.rejected

    return spoken(lambda: f"simulating: {ended():,} of {num_requests:,} requests")


@contextmanager
def spoken(text: Callable[[], str], every_s: float | None = None) -> Iterator[None]:
    """While the body runs, print a line every ten seconds, or every `every_s`; does not change the body."""
    began, done = time.monotonic(), threading.Event()

    def speak() -> None:
        while not done.wait(every_s or SPEAK_S):
            print(f"{text()}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
