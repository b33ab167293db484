"""What crosses memory or a link: block copies and swaps by size and number, all-reduces by bytes."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

from testbed.core.request import PS
from testbed.core.specs import ModelSpec, ServerSpec
from testbed.cost.knots import Knots, blend
from testbed.cost.sections import rows


class SizedTable:
    """Times by block size and number of blocks; between measured block sizes they are blended.

    A longer extent counts as the blocks of the largest measured size that it would fill.
    """

    def __init__(self, points: Iterable[tuple[tuple[int, int], int]]) -> None:
        by_size: dict[int, list[tuple[int, int]]] = {}
        for (size, count), ps in points:
            by_size.setdefault(size, []).append((count, ps))
        self._tables = {size: Knots(curve) for size, curve in sorted(by_size.items())}
        self._sizes = list(self._tables)

    def __call__(self, block_size: int, num_blocks: int) -> int:
        if num_blocks == 0:
            return 0
        if block_size > self._sizes[-1]:
            block_size, num_blocks = self._sizes[-1], num_blocks * -(-block_size // self._sizes[-1])
        if block_size in self._tables:
            return self._tables[block_size](num_blocks)
        i = min(max(1, bisect_right(self._sizes, block_size)), len(self._sizes) - 1)
        low, high = self._sizes[max(0, i - 1)], self._sizes[i]
        return max(0, blend(low, high, block_size, self._tables[low](num_blocks), self._tables[high](num_blocks)))


class HostLink:
    """Swaps that nobody measured: bytes over the data sheet's link to the host, each GPU its share, no latency.

    A bound from below; measured swaps reach some nine tenths of a link, and those of single small blocks far less.
    """

    def __init__(self, model: ModelSpec, server: ServerSpec) -> None:
        self._ps_per_slot = model.kv_bytes_per_token / server.num_gpus / server.gpu.host_bandwidth * PS

    def __call__(self, block_size: int, num_blocks: int) -> int:
        return round(block_size * num_blocks * self._ps_per_slot)


class AllReduce:
    """One all-reduce by bytes: measured, or a ring over the server's links (Megatron-LM) with no latency.

    Measured on fewer GPUs than asked for, times grow by the ring's share (n - 1) / n.
    """

    def __init__(self, profile: Mapping[str, Any], server: ServerSpec | None) -> None:
        self._knots: Knots | None = None
        self._ps_per_byte = 0.0
        if server is None or server.num_gpus == 1:
            return
        n = server.num_gpus
        points = rows(profile, "all_reduce") if "all_reduce" in profile["sections"] else []
        if points:
            m = max(key[0] for key, _ in points if key[0] <= n)
            self._knots = Knots((key[1], ps * (n - 1) * m // (n * (m - 1))) for key, ps in points if key[0] == m)
        else:
            self._ps_per_byte = 2 * (n - 1) / n / server.gpu.link_bandwidth * PS

    def __call__(self, num_bytes: int) -> int:
        return self._knots(num_bytes) if self._knots else round(num_bytes * self._ps_per_byte)
