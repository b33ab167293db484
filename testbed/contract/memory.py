"""A memory that really stores tokens, so that a policy's tables can be read back."""

from collections.abc import Iterable

from testbed.core.slots import Extent, Ops


class TokenMemory:
    """Two pools of slots; performs a policy's ops as an engine would."""

    def __init__(self) -> None:
        self.device: dict[int, int] = {}
        self.host: dict[int, int] = {}

    def perform(self, ops: Ops) -> None:
        """Carry out all transfers and copies; every source is read before anything is overwritten."""
        moves = (
            (self.device, self.host, ops.swap_out),
            (self.host, self.device, ops.swap_in),
            (self.device, self.device, ops.copies),
        )
        for source, target, copies in moves:
            values = [
                (copy.dst + i, source[copy.src + i])
                for copy in copies
                for i in range(copy.length)
                if copy.src + i in source
            ]
            target.update(values)

    def write(self, table: list[Extent], start: int, tokens: Iterable[int]) -> None:
        """Store tokens at positions start, start + 1, ... of a table."""
        slots = slots_of(table)
        for position, token in enumerate(tokens, start):
            self.device[slots[position]] = token

    def read(self, table: list[Extent], num_tokens: int) -> list[int | None]:
        """The first num_tokens tokens of a table."""
        return [self.device.get(slot) for slot in slots_of(table)[:num_tokens]]


def slots_of(table: list[Extent]) -> list[int]:
    """Every slot of a table in order."""
    return [slot for extent in table for slot in range(extent.start, extent.start + extent.length)]
