"""The pools that a policy manages: the device's, and the tiers below it."""

from dataclasses import dataclass
from typing import NamedTuple

from testbed.core.errors import InputError
from testbed.core.layers import KvGroup
from testbed.core.slots import HOST


class Tier(NamedTuple):
    """A pool below the device: its name, its slots, and bytes/s each way: of `host` to one GPU,
    else to all together.

    write_bandwidth 0.0: the same as `bandwidth`, which is that of reading. latency_s: seconds
    before the first byte.
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
    """The pools that a policy manages, in slots, and the longest sequence in tokens.

    num_slots is the device's, tiers lists the pools below it. A slot is one token's K and V:
    layer_bytes bytes in each of num_layers layers, over num_gpus GPUs together. groups: the model's
    layers by the form of their cache, with the bytes over all GPUs.
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
                    f"PoolSpec: {name} is {number!r}; it must be a whole number, of the type int "
                    f"itself"
                )

    def slots_of(self, tier: str) -> int:
        """Slots of a tier below the device; 0 where there is none of that name."""
        return next((t.num_slots for t in self.tiers if t.name == tier), 0)

    def __deepcopy__(self, memo: dict[int, object]) -> "PoolSpec":
        """The same value, which never changes; the compiler's frozen classes cannot be copied field
        by field.
        """
        return self
