"""A complete hand-over rule outside the package: the prompt is sent in fewer bytes."""

from testbed.core.units import LinkBandwidth, NonNegative, PositiveCount
from testbed.fleet.handovers.rule import HandoverRule, Sending


class Compressed(HandoverRule):
    """Sends a prompt when it is computed, in a `ratio`-th of its bytes; packing and unpacking take
    `pack_s_per_gb` seconds for each GB of it, during which the link sends as well.
    """

    def __init__(
        self,
        ratio: PositiveCount = 4,
        pack_s_per_gb: NonNegative = 0.02,
        bandwidth: LinkBandwidth = 50e9,
    ) -> None:
        super().__init__(bandwidth)
        self.ratio = ratio
        self.pack_s_per_gb = pack_s_per_gb

    def left_ps(self, sending: Sending) -> int:
        """Picoseconds from the moment at which the prompt is computed."""
        num_tokens = sending.num_tokens - sending.num_skipped
        link_ps = self.sending_ps(num_tokens, sending.num_extents, sending.slot_bytes)
        packing_s = num_tokens * sending.slot_bytes / 1e9 * self.pack_s_per_gb
        return max(link_ps // self.ratio, round(packing_s * 10**12))
