"""A memory that really stores tokens, so that a policy's tables can be read back."""

from collections.abc import Hashable, Iterable

from testbed.core.slots import DEVICE, Copy, Extent, Ops

Slots = dict[int, Hashable]


class TokenMemory:
    """A pool of slots for each tier; performs a policy's ops as an engine would."""

    def __init__(self) -> None:
        self.tiers: dict[str, Slots] = {DEVICE: {}}

    @property
    def device(self) -> Slots:
        """What every slot of the device holds."""
        return self.tiers[DEVICE]

    def perform(self, ops: Ops) -> None:
        """Carry out all moves between tiers and all copies; each reads its sources before it overwrites anything."""
        for source, target, copies in ops.moves:
            self._copy(self.tiers.setdefault(source, {}), self.tiers.setdefault(target, {}), copies)
        self._copy(self.device, self.device, ops.copies)

    def write(self, slots: Iterable[int], tokens: Iterable[Hashable]) -> None:
        """Store tokens in these slots of the device, one each."""
        self.device.update(zip(slots, tokens, strict=True))

    def read(self, table: list[Extent], num_tokens: int) -> list[Hashable]:
        """The first num_tokens tokens of a table; None where nothing was ever stored."""
        return [self.device.get(slot) for slot in slots_of(table)[:num_tokens]]

    def _copy(self, source: Slots, target: Slots, copies: Iterable[Copy]) -> None:
        pairs = [(dst + i, source.get(src + i)) for src, dst, length in copies for i in range(length)]
        target.update(pairs)


def slots_of(table: list[Extent]) -> list[int]:
    """Every slot of a table in order."""
    return [slot for start, length in table for slot in range(start, start + length)]
