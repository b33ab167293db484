"""Lines for people: the progress of a long run."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testbed.run.simulate import Counts

REPORT_S = 10.0


def watched(recorder: "Counts", num_requests: int) -> AbstractContextManager[None]:
    """While a simulation runs, print the number of requests that have finished or were rejected,
    and when the others will have at this pace.
    """
    began = time.monotonic()

    def ended() -> int:
        return recorder.totals.finished + recorder.totals.rejected

    def text() -> str:
        done, seconds = ended(), time.monotonic() - began
        rate = pace(done, num_requests, seconds)
        return f"simulating: {done:,} of {num_requests:,} requests ({rate})"

    return status_line(text)


def pace(done: int, total: int, seconds: float) -> str:
    """The number done a second, and the seconds that the others take, in words."""
    return f"{done / seconds:,.3g}/s{left(done, total, seconds)}"


def left(done: float, total: float, seconds: float) -> str:
    """The seconds that the rest takes at the pace until now, in words; empty before the first."""
    return f", about {(total - done) * seconds / done:,.0f} s left" if done else ""


class Progress:
    """The number done, the pace, and the time that the others take, in words."""

    def __init__(self, things: str) -> None:
        self.things = things
        self._began = time.monotonic()
        self._done = self._total = 0
        self._shortened: int | None = None

    def checked(self, done: int, total: int) -> None:
        """`done` of `total` histories have been run."""
        self._done, self._total = done, total

    def shortened(self, num_calls: int) -> None:
        """A violation was found, whose shortest calls until now are num_calls."""
        self._shortened = num_calls

    def __str__(self) -> str:
        """Empty while nothing is done."""
        if self._shortened is not None:
            return f": a clause is broken, by {self._shortened} calls or fewer; shortens them"
        if not self._done:
            return ""
        rate = pace(self._done, self._total, time.monotonic() - self._began)
        text = f": {self._done:,} of {self._total:,} {self.things}"
        return f"{text} ({rate})" if self._done < self._total else f"{text}, then the last checks"


@contextmanager
def status_line(text: Callable[[], str]) -> Iterator[None]:
    """While the body runs, print a line every ten seconds; does not change the body. If SIGINT or
    SIGTERM ends it, its exception notes the line.
    """
    began, done = time.monotonic(), threading.Event()

    def report() -> None:
        while not done.wait(REPORT_S):
            print(f"{text()}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    except KeyboardInterrupt as stopped:
        stopped.add_note(text())
        raise
    finally:
        done.set()
        thread.join()
