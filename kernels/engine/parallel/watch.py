"""Watches the workers from a thread of rank 0: one that dies, reports an error or gives no sign of
life ends them all, and rank 0 raises one line that names it.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing.connection import Connection, wait
from signal import Signals
from subprocess import Popen, TimeoutExpired
from typing import Any, TypeVar

from torch import OutOfMemoryError

from testbed.kernels.engine.parallel.collectives import GLOO_LIMIT_S, CollectiveError
from testbed.kernels.engine.parallel.leader import Guard
from testbed.kernels.engine.parallel.signs import ALONE, Alive, Failed, Reached

SILENT_S = 7.0  # without a sign of life a worker hangs
STUCK_S = 6.0  # a wait for a GPU that is longer means that the ranks wait for each other
NAMING_S = 2.5  # in which the worker that failed first is found
END_S = 2.0  # in which a process must end

T = TypeVar("T")


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
        """The fault of the worker itself, not of others; empty if nothing is."""
        if self.failed:
            return f"{self.name}: failed: {self.failed}"
        code = self.process.poll()
        if code is not None and code != ALONE:
            return f"{self.name}: {_how(code)}"
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
    whether a wait for the device has a limit here, as on a GPU, if collectives have none.
    """

    def __init__(self, workers: Sequence[Worker], *, limits_waits: bool) -> None:
        self.workers = workers
        self.failure = ""
        self.abort: Callable[[], None] = lambda: None
        self._limits_waits = limits_waits
        self._num_waits = 0  # one inside the other
        self._since_s = 0.0  # the innermost
        self._device_since_s: float | None = None
        self._has_failed, self._is_over = threading.Event(), threading.Event()
        self._notify: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def check(self) -> None:
        if self.failure:
            raise WorkerError(self.failure)

    def on_failure(self, call: Callable[[], object]) -> None:
        self._notify = call
        if self.failure:
            call()

    def waiting(self, *, for_device: bool = False) -> AbstractContextManager[None]:
        return self._waiting(for_device)

    def wait_until(self, stage: str) -> None:
        """Wait until all workers have reached a stage of their start."""
        while not all(stage in worker.stages for worker in self.workers):
            self.check()
            time.sleep(0.01)

    def call(self, function: Callable[[], T]) -> T:
        """The result of a function that waits for the workers if nothing can interrupt it. It
        has a thread of its own, so that a worker's failure is raised at once.
        """
        result: Future[T] = Future()
        threading.Thread(target=_resolve, args=(result, function), daemon=True).start()
        while not result.done():
            self.check()
            time.sleep(0.01)
        with self.waiting():
            return result.result()

    def end(self) -> None:
        """Wait until the workers have ended; kill those that do not. Raises WorkerError if one had
        not come to its end.
        """
        self._is_over.set()
        end_s = time.monotonic() + END_S
        for worker in self.workers:
            try:
                worker.process.wait(max(0.0, end_s - time.monotonic()))
            except TimeoutExpired:
                worker.kill()
        self._thread.join(END_S)
        self.failure = self.failure or self._problem_at_end()
        self.check()

    def kill(self) -> None:
        """End the workers at once; the caller has an error to raise."""
        self._is_over.set()
        for worker in self.workers:
            worker.kill()
        self._thread.join(END_S)

    @contextmanager
    def _waiting(self, for_device: bool) -> Iterator[None]:
        self.check()
        before, self._num_waits = self._device_since_s, self._num_waits + 1
        self._since_s = time.monotonic()
        self._device_since_s = self._since_s if for_device else before
        try:
            yield
        except OutOfMemoryError as error:
            raise WorkerError(out_of_memory(error)) from error
        except (CollectiveError, OSError) as error:
            self._has_failed.wait(NAMING_S)
            self.check()
            words = " ".join(str(error).split())
            raise WorkerError(f"{self._last_done()}: cannot be reached: {words}") from error
        except Exception:
            self.check()
            raise
        finally:
            self._device_since_s, self._num_waits = before, self._num_waits - 1
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
        """The fault; workers that only lost the others are named last."""
        if problem := next(filter(None, [worker.problem() for worker in self.workers]), ""):
            return problem
        since_s = self._device_since_s
        if self._limits_waits and since_s is not None and time.monotonic() - since_s > STUCK_S:
            return f"{self._last_done()}: hangs: rank 0 waits for {STUCK_S:.0f} s"
        if all(worker.process.poll() is not None for worker in self.workers):
            return f"{self.workers[0].name}: lost its connection to the others"
        return ""

    def _last_done(self) -> str:
        """The name of the worker that has followed the fewest messages."""
        return min(self.workers, key=lambda worker: worker.num_done).name

    def _fail(self, line: str) -> None:
        """End all workers, and let rank 0 raise; if it cannot, it ends too."""
        self.failure = line
        for worker in self.workers:
            worker.kill()
        self._has_failed.set()
        self._notify()
        with suppress(RuntimeError, ValueError):  # rank 0 may be ending them itself
            self.abort()
        end_s = max(time.monotonic(), self._since_s + GLOO_LIMIT_S) + END_S
        while self._num_waits and time.monotonic() < end_s:
            time.sleep(0.01)
        if self._num_waits:
            print(f"error: {line}", file=sys.stderr, flush=True)
            os._exit(1)

    def _problem_at_end(self) -> str:
        codes = [(worker.name, worker.process.returncode) for worker in self.workers]
        return next((f"{name}: {_how(code)} at its end" for name, code in codes if code), "")


def _resolve(result: "Future[T]", function: Callable[[], T]) -> None:
    try:
        result.set_result(function())
    except BaseException as error:
        result.set_exception(error)


def out_of_memory(error: OutOfMemoryError) -> str:
    """The line for rank 0's own memory."""
    return f"worker 0 (this process): ran out of memory: {' '.join(str(error).split())}"


def _how(code: int) -> str:
    """The end of a process, in words."""
    return f"was killed by {Signals(-code).name}" if code < 0 else f"ended with code {code}"
