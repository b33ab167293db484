"""Swaps that hide behind computing: how long an iteration takes with them."""

from collections.abc import Iterable

from testbed.core.slots import DEVICE, HOST
from testbed.cost.model import Moved

# Copies that the driver takes before a call waits; kernels/results/h200-overlap.csv measures it
MAX_PENDING = 1024


def with_swaps(computing_ps: int, moving_ps: int, num_copies: int, num_layers: int) -> int:
    """Time of an iteration whose swaps, num_copies calls that take moving_ps by themselves, hide
    behind computing.

    The 2023 system swaps on a separate stream, and a layer waits for no blocks but its own: layer
    by layer, the slower of the two sets the pace, and the other is felt in one layer only. But the
    host launches no layer before the driver has taken every copy, and it takes MAX_PENDING at a
    time.
    """
    waiting_ps = 0
    if num_copies > MAX_PENDING:
        waiting_ps = moving_ps * (num_copies - MAX_PENDING) // num_copies
    moving_ps -= waiting_ps
    return waiting_ps + max(computing_ps, moving_ps) + min(computing_ps, moving_ps) // num_layers


def swapped(moves: Iterable[Moved]) -> dict[str, list[Moved]]:
    """The moves from the device to the host ("out") and back ("in"), without those of other
    tiers.
    """
    swaps = [move for move in moves if {move.source, move.target} == {DEVICE, HOST}]
    return {
        "out": [move for move in swaps if move.source == DEVICE],
        "in": [move for move in swaps if move.source == HOST],
    }
