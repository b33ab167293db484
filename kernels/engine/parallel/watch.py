"""Watches the workers from a thread of rank 0: one that dies, reports an error or gives no sign of
life ends them all, and rank 0 raises one line that names it.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection, wait
from signal import Signals
from subprocess import Popen, TimeoutExpired
from typing import Any

from torch import OutOfMemoryError

from testbed.kernels.engine.parallel.leader import Guard
from testbed.kernels.engine.parallel.signs import ALONE, Alive, Failed, Reached

SILENT_S = 6.0  # without a sign of life a worker hangs
STUCK_S = 6.0  # a wait for a GPU that is longer means that the ranks wait for each other
NAMING_S = 2.0  # in which the worker that failed first is found
END_S = 3.0  # in which a process must end


class WorkerError(RuntimeError):
    """A worker failed; the line names it."""


class Worker:
    """Rank 0's knowledge of a worker's process. failed: its own last words, if any."""

    def __init__(self, rank: int, process: "Popen[bytes]", connection: Connection) -> None:
        self.rank = rank
        self.process = process
        self.connection = connection
        self.name = f"worker {rank} (process {process.pid})"
        self.last_sign_s = time.monotonic()
        self.num_done = 0
        self.stages: set[str] = set()
        self.failed = ""
        self.is_open = True

    def read(self) -> None:
        """Read one sign; at the end of the connection the process has ended, or ends now."""
        try:
            sign = self.connection.recv()
        except (EOFError, OSError):
            self.is_open = False
            self._reap()
            return
        self.last_sign_s = time.monotonic()
        if isinstance(sign, Alive):
            self.num_done = sign.num_done
        elif isinstance(sign, Reached):
            self.stages.add(sign.stage)
        elif isinstance(sign, Failed):
            self.failed = sign.line

    def problem(self) -> str:
        """What is wrong with the worker itself, not with others; empty if nothing is."""
        if self.failed:
            return f"{self.name}: failed: {self.failed}"
        code = self.process.poll()
        if code is not None and code != ALONE:
            how = f"was killed by {Signals(-code).name}" if code < 0 else f"ended with code {code}"
            return f"{self.name}: {how}"
        silent_s = time.monotonic() - self.last_sign_s
        if code is None and silent_s > SILENT_S:
            return f"{self.name}: hangs: no sign of life for {silent_s:.0f} s"
        return ""

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self._reap()

    def _reap(self) -> None:
        try:
            self.process.wait(END_S)
        except TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Watch(Guard):
    """The watch over all workers. abort: ends collectives that rank 0 waits for; limits_waits:
    whether a wait has a limit here, as on a GPU, where collectives have none.
    """

    def __init__(self, workers: Sequence[Worker], *, limits_waits: bool) -> None:
        self.workers = workers
        self.failure = ""
        self.abort: Callable[[], None] = lambda: None
        self._limits_waits = limits_waits
        self._waits_since_s: float | None = None
        self._has_failed, self._is_over = threading.Event(), threading.Event()
        self._calls: list[Callable[[], object]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def check(self) -> None:
        if self.failure:
            raise WorkerError(self.failure)

    def on_failure(self, call: Callable[[], object]) -> None:
        self._calls.append(call)
        if self.failure:
            call()

    def waiting(self) -> AbstractContextManager[None]:
        return self._waiting()

    def wait_until(self, stage: str) -> None:
        """Wait until all workers have reached a stage of their start."""
        while not all(stage in worker.stages for worker in self.workers):
            self.check()
            time.sleep(0.01)

    def end(self) -> None:
        """Wait until the workers have ended; kill those that do not."""
        self._is_over.set()
        end_s = time.monotonic() + END_S
        for worker in self.workers:
            try:
                worker.process.wait(max(0.0, end_s - time.monotonic()))
            except TimeoutExpired:
                worker.kill()
        self._thread.join(END_S)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self.check()
        self._waits_since_s = time.monotonic()
        try:
            yield
        except OutOfMemoryError as error:
            raise WorkerError(f"worker 0 (this process): ran out of memory: {error}") from error
        except (RuntimeError, OSError) as error:
            self._has_failed.wait(NAMING_S)
            self.check()
            raise WorkerError(
                f"{self._last_done()}: the ranks' exchange failed: {error}"
            ) from error
        finally:
            self._waits_since_s = None
        self.check()

    def _run(self) -> None:
        while not self._is_over.is_set():
            for connection in self._readable(0.1):
                next(w for w in self.workers if w.connection is connection).read()
            if (problem := self._problem()) and not self._is_over.is_set():
                self._fail(problem)
                return

    def _readable(self, timeout_s: float) -> list[Any]:
        connections = [worker.connection for worker in self.workers if worker.is_open]
        if not connections:
            time.sleep(timeout_s)
        return wait(connections, timeout_s)

    def _problem(self) -> str:
        """What is wrong; workers that only lost the others are named last."""
        if problem := next(filter(None, [worker.problem() for worker in self.workers]), ""):
            return problem
        since_s = self._waits_since_s
        if self._limits_waits and since_s is not None and time.monotonic() - since_s > STUCK_S:
            return f"{self._last_done()}: hangs: rank 0 waits for {STUCK_S:.0f} s"
        if all(worker.process.poll() is not None for worker in self.workers):
            return f"{self.workers[0].name}: lost its connection to the others"
        return ""

    def _last_done(self) -> str:
        """The name of the worker that has followed the fewest messages."""
        return min(self.workers, key=lambda worker: worker.num_done).name

    def _fail(self, line: str) -> None:
        """End all workers, and let rank 0 raise; where it cannot, it ends too."""
        self.failure = line
        for worker in self.workers:
            worker.kill()
        self._has_failed.set()
        for call in self._calls:
            call()
        if self._still_waits(END_S / 2):
            self.abort()
        if self._still_waits(END_S / 2):
            print(f"error: {line}", file=sys.stderr, flush=True)
            os._exit(1)

    def _still_waits(self, limit_s: float) -> bool:
        """Whether rank 0 does not get out of a wait in this time."""
        end_s = time.monotonic() + limit_s
        while self._waits_since_s is not None and time.monotonic() < end_s:
            time.sleep(0.01)
        return self._waits_since_s is not None
