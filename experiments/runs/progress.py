"""The progress of a long run: a bar on a terminal, else a line every ten seconds."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from testbed.sim.recorder import Recorder

PATIENCE_S = 1.0
REFRESH_S = 0.2
SPEAK_S = 10.0


@contextmanager
def watched(recorder: Recorder, num_requests: int) -> Iterator[None]:
    """While a long body runs, show the number of ended requests; does not change the run."""
    if sys.stderr.isatty():
        with in_background(lambda done: _bar(recorder, num_requests, done)):
            yield
    else:
        with spoken(lambda: f"simulating: {ended(recorder):,} of {num_requests:,} requests"):
            yield


@contextmanager
def spoken(text: Callable[[], str], every_s: float | None = None) -> Iterator[None]:
    """While the body runs, print a line to standard error every ten seconds, or every `every_s`."""
    began = time.monotonic()

    def sample(done: threading.Event) -> None:
        while not done.wait(every_s or SPEAK_S):
            print(f"{text()}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    with in_background(sample):
        yield


@contextmanager
def in_background(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `work` in a thread while the body runs; its event is set at the end."""
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def ended(recorder: Recorder) -> int:
    """Requests that have finished or were rejected."""
    return recorder.totals.finished + recorder.totals.rejected


def _bar(recorder: Recorder, num_requests: int, done: threading.Event) -> None:
    if done.wait(PATIENCE_S):
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TextColumn("requests"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=num_requests)
        while not done.wait(REFRESH_S):
            progress.update(task, completed=ended(recorder))
