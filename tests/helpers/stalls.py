"""The time that a busy machine has kept a thread waiting, so that a test of real times can allow
for it.
"""

import threading
import time
from contextlib import contextmanager

NAP_S = 0.001


class Stalls:
    """worst_s: by how much the longest of many short naps was too long."""

    worst_s = 0.0

    def __init__(self):
        self._is_over = threading.Event()

    def watch(self):
        while not self._is_over.is_set():
            began_s = time.monotonic()
            self._is_over.wait(NAP_S)
            self.worst_s = max(self.worst_s, time.monotonic() - began_s - NAP_S)

    def end(self):
        self._is_over.set()


@contextmanager
def stalls_measured():
    """Measured while the body runs."""
    stalls = Stalls()
    thread = threading.Thread(target=stalls.watch)
    thread.start()
    try:
        yield stalls
    finally:
        stalls.end()
        thread.join()
