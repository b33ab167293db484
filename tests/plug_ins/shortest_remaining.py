"""Shortest remaining first: what the queue could gain if output lengths were known."""

from testbed.sched.mixed import MixedPrefill


class ShortestRemaining(MixedPrefill):
    """Serves the request with the fewest output tokens left first; ties in order of arrival.

    It is an oracle: a run passes the true output lengths as `lengths`, by request id.
    """

    def __init__(self, policy, preemption, *, lengths, **limits):
        super().__init__(policy, preemption, **limits)
        self.lengths = lengths

    def choose_order(self, waiting):
        ordered = sorted(waiting, key=self.remaining)
        waiting.clear()
        waiting.extend(ordered)

    def remaining(self, group):
        """Output tokens of each sequence that are still to come, and the request id."""
        request_id = group.request_id
        return self.lengths[request_id] - group.num_generated, request_id
