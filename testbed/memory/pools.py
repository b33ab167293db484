"""The pools that a policy manages: the device's, and the tiers below it."""

from dataclasses import dataclass
from typing import NamedTuple

from testbed.core.errors import InputError
from testbed.core.layers import KvGroup
from testbed.core.slots import HOST


class Tier(NamedTuple):
    """A pool below the device.

    Attributes:
        name: its name, unique among the tiers.
        num_slots: its slots.
        bandwidth: bytes/s of reading: of `host` to one GPU, else to all together.
        write_bandwidth: bytes/s of writing; 0.0: the same as `bandwidth`.
        latency_s: seconds before the first byte.
    """

    name: str
    num_slots: int
    bandwidth: float = 0.0
    write_bandwidth: float = 0.0
    latency_s: float = 0.0


def host(num_slots: int, bandwidth: float = 0.0) -> tuple[Tier, ...]:
    """The one tier that the built-in policies know: pinned host memory (section 4.5)."""
    return (Tier(HOST, num_slots, bandwidth),)


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """The pools that a policy manages, in slots. A slot is one token's K and V.

    Attributes:
        num_slots: the device's.
        max_len: tokens of the longest sequence.
        tiers: the pools below the device.
        layer_bytes: bytes of a slot in each layer, over all GPUs together.
        num_layers: layers of the model.
        num_gpus: GPUs that share the model.
        groups: the model's layers by the form of their cache, with the bytes over all GPUs.
    """

    num_slots: int
    max_len: int
    tiers: tuple[Tier, ...] = ()
    layer_bytes: int = 1
    num_layers: int = 1
    num_gpus: int = 1
    groups: tuple[KvGroup, ...] = ()

    def __post_init__(self) -> None:
        for name, number in (("num_slots", self.num_slots), ("max_len", self.max_len)):
            if type(number) is not int:
                raise InputError(
                    key=f"PoolSpec: {name}",
                    value=repr(number),
                    problem="must be a whole number, of the type int itself",
                )

    def slots_of(self, tier: str) -> int:
        """Slots of a tier below the device; 0 if there is none of that name.

        Args:
            tier: its name.
        """
        return next((t.num_slots for t in self.tiers if t.name == tier), 0)

    def __deepcopy__(self, memo: dict[int, object]) -> "PoolSpec":
        """The same value, which never changes."""
        return self
