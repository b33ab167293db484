"""The admission watermark: what an admission must leave free (section 4.5; the artifact's 1%)."""

from collections.abc import Callable
from math import ceil

from testbed.core.errors import InputError


class Watermark:
    """A share of `total` blocks, pages or units, in whole ones.

    It gives the running sequences room to grow before one of them is preempted. It does not apply
    while no sequence is on the device, so that a request that fits the pool is admitted in the end.
    """

    def __init__(self, share: float, total: int, rounded: Callable[[float], int] = ceil) -> None:
        if not 0 <= share < 1:
            raise InputError(
                key="watermark",
                value=share,
                problem="must be a share of the pool, at least 0 and below 1",
            )
        self._reserve = rounded(share * total)

    def reserve(self, num_resident: int) -> int:
        """The number of blocks that must stay free if num_resident sequences are on the device."""
        return self._reserve if num_resident else 0
