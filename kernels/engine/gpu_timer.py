"""Splits an iteration's time: what the host does, how long it waits for the GPU, how long the GPU works."""

import time
from typing import NamedTuple

import torch


class Split(NamedTuple):
    """Seconds of one iteration."""

    host_s: float
    waited_s: float
    gpu_s: float


class HostTimer:
    """For a CPU: everything is host time."""

    def __init__(self) -> None:
        self._start = 0.0
        self._waited = 0.0
        self._wait_start = 0.0

    def start(self) -> None:
        """The iteration begins with its plan."""
        self._start, self._waited = time.perf_counter(), 0.0

    def launched(self) -> None:
        """The device's work begins with what is ordered from now on; only the first call of an iteration counts."""

    def wait(self) -> None:
        """All of the device's work is ordered; the host waits for it from now on."""
        self._wait_start = time.perf_counter()

    def waited(self) -> None:
        """The results are there."""
        self._waited += time.perf_counter() - self._wait_start

    def stop(self) -> Split:
        """The iteration is committed."""
        return Split(time.perf_counter() - self._start - self._waited, self._waited, self.gpu_s())

    def gpu_s(self) -> float:
        """Seconds that the device has worked."""
        return 0.0


class GpuTimer(HostTimer):
    """Reads the device's own clock by events around its work."""

    def __init__(self) -> None:
        super().__init__()
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self._begun = self._recorded = False

    def start(self) -> None:
        """See HostTimer."""
        super().start()
        self._begun = self._recorded = False

    def launched(self) -> None:
        """See HostTimer."""
        if not self._begun:
            self._begun = True
            self._events[0].record()

    def wait(self) -> None:
        """See HostTimer."""
        self._recorded = self._begun
        self._events[1].record()
        super().wait()

    def gpu_s(self) -> float:
        """See HostTimer."""
        if not self._recorded:
            return 0.0
        self._events[1].synchronize()
        return self._events[0].elapsed_time(self._events[1]) / 1e3
