"""The SimPy process that submits requests."""

from collections.abc import Iterable

import simpy

from testbed.core.request import Request
from testbed.sim.engine import Engine, ProcessGenerator


class Arrival(simpy.Event):
    """Happens after `delay`, before anything else that happens then.

    An iteration that ends at the very moment of an arrival must see it, whatever was scheduled first.
    """

    def __init__(self, env: simpy.Environment, delay: int) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, priority=simpy.events.URGENT, delay=delay)


def open_loop(env: simpy.Environment, engine: Engine, requests: Iterable[Request]) -> ProcessGenerator:
    """Submit requests at their own times, whatever the engine does."""
    for request in requests:
        delay = request.arrival_ps - int(env.now)
        if delay > 0:
            yield Arrival(env, delay)
        engine.submit(request)
    engine.close()
