"""A simulated server of a tiny model on a local socket, in a thread, for tests with real
clients.
"""

import asyncio
import contextlib
import socket
import threading
import time

import httpx

from testbed.experiments.runs.compose import configured
from testbed.serving.http_server import ServeOptions, make_server, make_service

MODEL = "opt-13b"
LONG_S = 300.0  # what is not there by then never comes, however slow the machine is
WORDS = (f"model={MODEL}", "arrivals.duration_s=1", "arrivals.rate=1")


class RunningServer:
    """The server, its address, and what its simulation knows."""

    def __init__(self, options, words=WORDS):
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen(1024)
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.service = make_service(configured(list(words)), options)
        self.live = self.service.live
        self.server = make_server(self.service, options)
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        asyncio.run(self.server.serve(sockets=[self.socket]))

    def start(self):
        self.thread.start()
        wait_until(lambda: self.server.started)

    def stop(self):
        self.server.should_exit = True
        self.thread.join(LONG_S)
        assert not self.thread.is_alive()

    @property
    def held(self):
        """The share of the pool that requests hold."""
        return self.live.state.kv_usage


@contextlib.contextmanager
def running(words=WORDS, **options):
    server = RunningServer(ServeOptions(**options), words)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def get(url, **more):
    return httpx.get(url, timeout=LONG_S, **more)


def wait_until(is_true):
    end_s = time.monotonic() + LONG_S
    while not is_true():
        assert time.monotonic() < end_s, "it has not come true"
        time.sleep(0.01)
