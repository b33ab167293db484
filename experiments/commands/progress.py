"""A progress bar for runs that last more than a second."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from testbed.sim.recorder import Recorder

PATIENCE_S = 1.0
REFRESH_S = 0.2


@contextmanager
def watched(recorder: Recorder, num_requests: int, show: bool) -> Iterator[None]:
    """While the body runs, and if it lasts, show how many requests have ended; the run itself is not touched."""
    if not show:
        yield
        return
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(recorder, num_requests, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _watch(recorder: Recorder, num_requests: int, done: threading.Event) -> None:
    if done.wait(PATIENCE_S):
        return
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TextColumn("requests"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=num_requests)
        while not done.wait(REFRESH_S):
            progress.update(task, completed=recorder.totals.finished + recorder.totals.rejected)
