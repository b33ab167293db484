"""All of a prompt at once."""

from testbed.fleet.handovers.rule import HandoverRule, Sending


class Whole(HandoverRule):
    """The prompt is sent when all of it is computed."""

    def left_ps(self, sending: Sending) -> int:
        num_tokens = sending.num_tokens - sending.num_skipped
        return self.sending_ps(num_tokens, sending.num_extents, sending.slot_bytes)
