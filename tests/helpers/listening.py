"""The time of every token of a run, as a listener gets it."""

from collections import defaultdict

import numpy as np
from same_runs import lengths_of
from strategies import MAX_LEN

from testbed.engine.clients import client_of
from testbed.engine.engine_parts import EngineParts
from testbed.engine.listeners import TokenListener
from testbed.engine.mode import Mode
from testbed.engine.recorder import Recorder
from testbed.engine.sim_clock import SimClock
from testbed.engine.simulation import Environment, simulated_engine


class TokenTimes(TokenListener):
    """The plain version: the time of every token of every request."""

    def __init__(self):
        self.times_ps = defaultdict(list)

    def on_tokens(self, request_id, count, time_ps):
        self.times_ps[request_id] += [time_ps] * count

    @property
    def gaps_ps(self):
        """The gaps of each request that has several tokens, by its id."""
        several = {one: times for one, times in self.times_ps.items() if len(times) > 1}
        return {one: np.diff(times).tolist() for one, times in several.items()}


def listened(requests, scheduler, cost, acceptance=None, **options):
    """A run in which a listener gets each token: its recorder, and the tokens."""
    clock, recorder, listener = SimClock(Environment(0)), Recorder(), TokenTimes()
    parts = EngineParts(
        scheduler, cost, MAX_LEN, lengths=lengths_of(scheduler), acceptance=acceptance
    )
    engine = simulated_engine(clock, parts, recorder, Mode(**options))
    engine.listen_to_tokens(listener)
    client_of(clock, engine, requests).start()
    clock.env.run(until=clock.start(engine.serve()))
    return recorder, listener
