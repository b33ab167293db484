"""The memory trace of requests that one engine serves."""

from testbed.engine.memory_trace import TracedPart, trace_run
from testbed.engine.simulation import simulate


def trace_memory(requests, scheduler, cost, max_len, part=None, *, pool=None, lengths=None):
    """The trace of `part`, by default of the whole run. lengths: see `simulate`."""
    part = part or TracedPart()

    def run(env):
        return simulate(
            requests,
            scheduler,
            cost,
            max_len,
            snapshots_ps=(part.start_ps,),
            stop_ps=part.stop_ps,
            env=env,
            lengths=lengths,
        ).end_ps

    return trace_run(run, requests, scheduler, part, pool)
