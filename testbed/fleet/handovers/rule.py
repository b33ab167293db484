"""The plug-in API for hand-overs: how long a prompt is on its way after it is computed."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from testbed.core.request import PS
from testbed.core.units import LinkBandwidth, Seconds


class Computed(NamedTuple):
    """A part of a prompt that one iteration has computed: `new` tokens behind num_stored others."""

    num_stored: int
    new: int
    start_ps: int
    end_ps: int


class Sending(NamedTuple):
    """What has to be sent of a prompt: its tokens behind the first num_skipped, which the decode
    engine has, in num_extents pieces that are adjacent on both sides.

    parts: how the prompt was computed, in order.
    """

    num_tokens: int
    num_skipped: int
    num_extents: int
    slot_bytes: int
    num_layers: int
    parts: tuple[Computed, ...]


class HandoverRule(ABC):
    """How a prefill engine hands a prompt over.

    bandwidth: bytes/s of a prefill engine's link, all its GPUs together; its hand-overs share it
    equally, and a decode engine's side never limits it. latency_s passes before the first byte.
    extent_s: more for each extent, as for a tier. reserves: the decode engine's slots are reserved
    before the prefill begins, else when it has ended.
    """

    def __init__(
        self,
        bandwidth: LinkBandwidth = 50e9,
        latency_s: Seconds = 0.0,
        extent_s: Seconds = 0.0,
        reserves: bool = False,
    ) -> None:
        self.bandwidth = bandwidth
        self.extent_s = extent_s
        self.reserves = reserves
        self.latency_ps = round(latency_s * PS)

    @abstractmethod
    def left_ps(self, sending: Sending) -> int:
        """Picoseconds that the link needs, by itself and without latency, from the moment when the
        prompt is computed.
        """

    def sending_ps(self, num_tokens: int, num_extents: int, slot_bytes: int) -> int:
        """Picoseconds of so many tokens in so many extents."""
        sending_s = num_tokens * slot_bytes / self.bandwidth + num_extents * self.extent_s
        return round(sending_s * PS)
