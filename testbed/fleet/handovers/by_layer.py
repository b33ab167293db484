"""A prompt layer by layer, while it is computed."""

from testbed.core.slots import ceil_div
from testbed.core.units import LinkBandwidth, Seconds
from testbed.fleet.handovers.rule import HandoverRule, Sending


class ByLayer(HandoverRule):
    """Each layer is sent when it is computed, so only what computing does not hide is left. Layers
    need slots before they are computed, so these are always reserved.

    The layers of an iteration take equal times. Each layer pays for its extents. Layers that are
    sent while the prompt is computed are counted as if they had the link to themselves; what is
    left shares it.
    """

    def __init__(
        self,
        bandwidth: LinkBandwidth = 50e9,
        latency_s: Seconds = 0.0,
        extent_s: Seconds = 0.0,
    ) -> None:
        super().__init__(bandwidth, latency_s, extent_s, reserves=True)

    def left_ps(self, sending: Sending) -> int:
        """Time runs in units of ps / num_layers, so that a layer's share of an iteration is whole.

        The layers of a part are sent one after another: all of them after what was sent before,
        all of them after the first is computed, and the last one after that is computed.
        """
        layers, parts = sending.num_layers, sending.parts
        extents = sending.num_extents * layers
        num_tokens = sending.num_tokens - sending.num_skipped
        whole_ps = self.sending_ps(num_tokens, extents, sending.slot_bytes)
        if not num_tokens:
            return 0
        cached = max(parts[0].num_stored - sending.num_skipped, 0)
        free_at = layers * (parts[0].start_ps + whole_ps * cached // num_tokens)
        for num_stored, new, start_ps, end_ps in parts:
            sent = min(new, max(num_stored + new - sending.num_skipped, 0))
            sending_ps = whole_ps * sent // num_tokens
            from_first = layers * (start_ps + sending_ps) + end_ps - start_ps
            from_last = layers * end_ps + sending_ps
            free_at = max(free_at + layers * sending_ps, from_first, from_last)
        return max(ceil_div(free_at - layers * parts[-1].end_ps, layers), 0)
