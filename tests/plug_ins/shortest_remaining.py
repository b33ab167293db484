"""Shortest remaining first: what the queue could gain if output lengths were known."""

from testbed.sched.mixed import MixedPrefill


class ShortestRemaining(MixedPrefill):
    """Serves first who has the fewest output tokens left to come; ties in order of arrival."""

    reads_output_len = True

    def choose_order(self, waiting):
        ordered = sorted(waiting, key=self.remaining)
        waiting.clear()
        waiting.extend(ordered)

    def remaining(self, group):
        """Output tokens of each sequence that are still to come, and the request id."""
        request_id = group.request.request_id
        return self.output_len[request_id] - group.num_generated, request_id
