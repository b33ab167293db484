"""An asyncio loop in which waiting takes no time, so that a busy machine delays nothing."""

import asyncio
import selectors

TICK_S = 1e-5  # by which the clock goes on whenever it is read: a loop that waits awake ends


class _Jump(selectors.DefaultSelector):
    """If nothing has happened, the clock goes on to the end of the wait."""

    loop = None

    def select(self, timeout=None):
        if timeout is None:  # only another thread can end it
            return super().select(None)
        if not (events := super().select(0)):
            self.loop.now_s += timeout
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its clock is `now_s`, in seconds from 0 on."""

    def __init__(self):
        self.now_s = 0.0
        selector = _Jump()
        selector.loop = self
        super().__init__(selector)

    def time(self):
        self.now_s += TICK_S
        return self.now_s


def run_virtually(work):
    """The result of a coroutine; it takes the real time of its Python alone."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
