"""Signals of a worker's process to rank 0 about itself; messages of rank 0 go the other way.

Nothing here needs torch: a worker says that it lives while it imports it.
"""

import threading
import time
from multiprocessing.connection import Connection
from os import _exit
from typing import NamedTuple

BEAT_S = 0.5
ALONE, FAILED = 3, 4  # exit codes: of a worker that lost the others, and of one with an error


class Alive(NamedTuple):
    """Sent all the time. num_done: messages that the worker has followed."""

    num_done: int


class Reached(NamedTuple):
    """The worker has reached a stage of its start."""

    stage: str


class Failed(NamedTuple):
    """The worker ends with an error, in one line."""

    line: str


Sign = Alive | Reached | Failed
HERE, LOADED = Reached("is here"), Reached("has its weights")


class Signs:
    """Sends a worker's signs, from the first on; ends the process if they are not read."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._num_done = 0
        threading.Thread(target=self._beat, daemon=True).start()

    def done(self) -> None:
        """One more message was followed."""
        self._num_done += 1

    def send(self, sign: Sign) -> None:
        """Send a sign; ends the process if rank 0 has gone."""
        try:
            with self._lock:
                self._connection.send(sign)
        except OSError:
            _exit(ALONE)

    def _beat(self) -> None:
        while True:
            self.send(Alive(self._num_done))
            time.sleep(BEAT_S)
