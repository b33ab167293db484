"""The plug-in API for hand-overs: how long a prompt is on its way after it is computed."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from testbed.core.request import PS
from testbed.core.units import LinkBandwidth, Seconds


class Computed(NamedTuple):
    """A part of a prompt that one iteration has computed.

    Attributes:
        num_stored: tokens before it.
        new: its tokens.
        start_ps: when the iteration began, in picoseconds.
        end_ps: when it ended.
    """

    num_stored: int
    new: int
    start_ps: int
    end_ps: int


class Sending(NamedTuple):
    """The tokens of a prompt to send.

    Attributes:
        num_tokens: tokens to send.
        num_skipped: leading tokens that the decode engine has.
        num_extents: pieces that are adjacent on both sides.
        slot_bytes: bytes of a token over all layers.
        num_layers: layers of the model.
        parts: how the prompt was computed, in order.
    """

    num_tokens: int
    num_skipped: int
    num_extents: int
    slot_bytes: int
    num_layers: int
    parts: tuple[Computed, ...]


class HandoverRule(ABC):
    """The hand-over of a prompt by a prefill engine."""

    def __init__(
        self,
        bandwidth: LinkBandwidth = 50e9,
        latency_s: Seconds = 0.0,
        extent_s: Seconds = 0.0,
        reserves: bool = False,
    ) -> None:
        """A rule; a decode engine's side of the link never limits it.

        Args:
            bandwidth: bytes/s of a prefill engine's link, all its GPUs together; its hand-overs
                share it equally.
            latency_s: seconds before the first byte.
            extent_s: seconds more for each extent, as for a tier.
            reserves: the decode engine's slots are reserved before the prefill begins, else when it
                has ended.
        """
        self.bandwidth = bandwidth
        self.extent_s = extent_s
        self.reserves = reserves
        self.latency_ps = round(latency_s * PS)

    @abstractmethod
    def left_ps(self, sending: Sending) -> int:
        """Picoseconds that the link needs, by itself and without latency, from the moment when the
        prompt is computed.

        Args:
            sending: what has to be sent.
        """

    def sending_ps(self, num_tokens: int, num_extents: int, slot_bytes: int) -> int:
        """Picoseconds that the link needs for it, without latency.

        Args:
            num_tokens: tokens to send.
            num_extents: pieces that are adjacent on both sides.
            slot_bytes: bytes of a token over all layers.
        """
        sending_s = num_tokens * slot_bytes / self.bandwidth + num_extents * self.extent_s
        return round(sending_s * PS)
