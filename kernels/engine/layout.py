"""The K and V pools, and the addresses of a policy's slots in them: in blocks, or in one extent per
sequence.

A row is one head's values of one slot. A block has the layout [num_kv_heads, block_size,
head_size], an extent [num_kv_heads, length, head_size], as the paged and the contiguous kernels
read them.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from testbed.core.errors import InputError, PlugInError
from testbed.core.sequence import Sequence
from testbed.core.slots import Extent
from testbed.core.specs import GIB, ModelSpec
from testbed.kernels.engine.device_memory import free_of_host
from testbed.kernels.launch.attention import MAX_BLOCK_SIZE
from testbed.kernels.launch.host_memory import pinned
from testbed.kernels.verify.reference import NAN_E4M3
from testbed.memory.capabilities import Capabilities
from testbed.memory.layouts import ExtentLayout, PageLayout
from testbed.memory.policy import PoolSpec

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pools:
    """device: [2 * num_layers, num_slots * num_kv_heads * head_size], K and V of a layer in turn.

    below: by tier, in the host's memory, pinned if there is a GPU: [num_blocks, 2 * num_layers,
    block_size * num_kv_heads * head_size]. scales: of a cache of e4m3, whose bytes the pools then
    contain, float32 [num_layers, 2, num_kv_heads] of K and of V.
    """

    device: Tensor
    below: Mapping[str, Tensor]
    spec: ModelSpec
    scales: Tensor | None = None

    @property
    def nan(self) -> float:
        """The value that makes a slot read as NaN."""
        return float("nan") if self.scales is None else NAN_E4M3

    def erase(self, slots: Ints) -> None:
        """Fill whole blocks or extents, in slots, so that they read as NaN."""
        heads = self.spec.num_kv_heads
        rows = (slots[:, None] * heads + np.arange(heads)).ravel()  # of whole blocks: any order
        self.rows()[:, torch.from_numpy(rows).to(self.device.device)] = self.nan

    def rows(self) -> Tensor:
        """All planes as rows, [num_planes, num_rows, head_size]."""
        return self.device.view(self.device.shape[0], -1, self.spec.head_size)

    def blocks(self, block_size: int) -> Tensor:
        """All planes as blocks, [num_planes, num_blocks, num_kv_heads, block_size, head_size]."""
        return self.device.view(
            self.device.shape[0], -1, self.spec.num_kv_heads, block_size, self.spec.head_size
        )

    def blocks_below(self, tier: str, block_size: int) -> Tensor:
        """A tier's pool as blocks, [num_blocks, num_planes, num_kv_heads, block_size,
        head_size].
        """
        s, pool = self.spec, self.below[tier]
        return pool.view(len(pool), -1, s.num_kv_heads, block_size, s.head_size)


def make_pools(
    spec: ModelSpec, pool: PoolSpec, block_size: int, like: Tensor, pooled_layers: int
) -> Pools:
    """Empty pools of the slots of `pool`, cut to whole blocks; of the type of `like` and on its
    device, or e4m3.

    pooled_layers: layers with a pool each; 1 if all share one. Scales are 1, as in vLLM if a
    model gives none.
    """
    planes, width, dtype, scales = (
        2 * pooled_layers,
        spec.num_kv_heads * spec.head_size,
        like.dtype,
        None,
    )
    if spec.kv_dtype_bytes == 1:
        dtype, scales = (
            torch.uint8,
            torch.ones((spec.num_layers, 2, spec.num_kv_heads), device=like.device),
        )
    shapes = {
        tier.name: (tier.num_slots // block_size, planes, block_size * width) for tier in pool.tiers
    }
    size = planes, pool.num_slots // block_size * block_size * width
    if not like.is_cuda:
        _check_memory(sum(map(math.prod, (size, *shapes.values()))) * dtype.itemsize)
    empty: Callable[..., Tensor] = pinned if like.is_cuda else torch.empty
    below = {name: empty(shape, dtype=dtype) for name, shape in shapes.items()}
    return Pools(torch.zeros(size, dtype=dtype, device=like.device), below, spec, scales)


def _check_memory(num_bytes: int) -> None:
    """Raise InputError for pools that the host's memory cannot hold."""
    free = free_of_host()
    if free is not None and num_bytes > free:
        raise InputError(
            key="engine.device",
            value="cpu",
            problem=f"the pools need {num_bytes / GIB:.1f} GiB, {free / GIB:.1f} are free",
            remedy="fewer server.num_blocks, smaller tiers, or simulate",
        )


@dataclass(frozen=True, slots=True)
class Place:
    """A sequence's tables for a kernel: block ids, a row for each column; or the first slot and
    length of an extent.
    """

    ids: Ints
    num_slots: int


NO_PLACE = -1, Place(np.empty((1, 0), np.int64), 0)  # of no version


class Blocks:
    """Blocks of block_size slots: converts tables to places, and positions of a place to slots and
    rows.

    An extent of a table may consist of several adjacent blocks.
    """

    num_columns = 1  # tables of a sequence

    def __init__(self, num_kv_heads: int, block_size: int) -> None:
        self.num_kv_heads = num_kv_heads
        self.block_size = block_size

    def table_width(self, longest: int) -> int:
        """The entries of a sequence's table for this many tokens."""
        return -(-longest // self.block_size)

    def column_of(self, layer: int) -> int:
        """The column whose table a layer reads."""
        return 0

    def rows_of(self, pools: Pools, layer: int) -> Tensor:
        """A layer's K and V as rows, from the one on that its tables count from."""
        return pools.rows()[2 * layer : 2 * layer + 2]

    def place_of(self, memory: Capabilities, seq: Sequence) -> Place:
        """A sequence's place."""
        return self.place(memory.policy.table(seq), seq)

    def place(self, table: list[Extent], owner: object) -> Place:
        """A table as a place; raises PlugInError, which names `owner`, if these kernels cannot
        read the table.
        """
        size, slots = self.block_size, np.fromiter(chain.from_iterable(table), np.int64)
        (firsts, counts), rest = np.divmod(slots.reshape(-1, 2).T, size)
        if rest.any():
            raise PlugInError(
                f"the table of {owner}: has extents of partial blocks of {size} slots: {table} "
                f"(set block_size=1)"
            )
        ends = np.cumsum(counts)
        ids = np.repeat(firsts - ends + counts, counts) + np.arange(counts.sum())
        return Place(np.tile(ids, (self.num_columns, 1)), len(ids) * size)

    def slots(self, place: Place, positions: Ints, column: int = 0) -> Ints:
        """The slots of a sequence's tokens at `positions`."""
        return self.targets(place.ids, column, positions)

    def rows(self, place: Place, positions: Ints, column: int) -> Ints:
        """The rows of a sequence's tokens at `positions`, [num_tokens, num_kv_heads]."""
        return self.rows_of_slots(self.slots(place, positions, column), [])

    def rows_of_slots(self, slots: Ints, live: list[list[Extent]]) -> Ints:
        """The rows of adjacent slots, [num_slots, num_kv_heads]; of extents none that are in no
        table of `live`.
        """
        blocks, offsets = np.divmod(slots, self.block_size)
        heads = np.arange(self.num_kv_heads)
        return (blocks[:, None] * self.num_kv_heads + heads) * self.block_size + offsets[:, None]

    def targets(self, tables: NDArray[Any], owners: Ints | int, positions: Ints) -> Ints:
        """The slots to which write_cache stores tokens of sequences: slots, [num_tokens], or rows,
        [num_tokens, num_kv_heads].

        owners: rows of `tables`.
        """
        blocks, offsets = np.divmod(positions, self.block_size)
        return np.asarray(tables[owners, blocks].astype(np.int64) * self.block_size + offsets)


class Extents(Blocks):
    """One extent per sequence, as in FasterTransformer."""

    def __init__(self, num_kv_heads: int) -> None:
        super().__init__(num_kv_heads, 1)

    def table_width(self, longest: int) -> int:
        return 2

    def place(self, table: list[Extent], owner: object) -> Place:
        if len(table) != 1:
            raise PlugInError(
                f"the table of {owner}: is {table} (the contiguous kernels read one extent per "
                f"sequence)"
            )
        return Place(np.array(table, np.int64), table[0].length)

    def slots(self, place: Place, positions: Ints, column: int = 0) -> Ints:
        return np.asarray(place.ids[0, 0] + positions)

    def rows(self, place: Place, positions: Ints, column: int) -> Ints:
        return self.targets(place.ids, np.zeros_like(positions), positions)

    def rows_of_slots(self, slots: Ints, live: list[list[Extent]]) -> Ints:
        for (extent,) in live:
            if extent.start <= slots[0] < extent.start + extent.length:
                return self.targets(np.array([extent]), np.zeros_like(slots), slots - extent.start)
        return np.empty((0, self.num_kv_heads), np.int64)

    def targets(self, tables: NDArray[Any], owners: Ints | int, positions: Ints) -> Ints:
        first, length = tables[owners].astype(np.int64).T
        heads = np.arange(self.num_kv_heads) * length[:, None]
        return np.asarray((first * self.num_kv_heads + positions)[:, None] + heads)


class Pages(Blocks):
    """Blocks of one layer, of which a page of a column has one for each of its layers
    (policy=grouped).

    All layers share one pool. Layer i of a column reads the blocks i behind those of the table.
    """

    def __init__(
        self, num_kv_heads: int, form: PageLayout, windows: tuple[int | None, ...]
    ) -> None:
        super().__init__(num_kv_heads, form.tokens_per_page)
        left = [
            [i for i, window in enumerate(windows) if (window is None) == full]
            for full in (True, False)
        ]
        groups, self._places = [layers for layers in left if layers], dict[int, tuple[int, int]]()
        self.num_columns = len(form.columns)
        for column, pages in enumerate(form.columns):
            for i in range(pages.width):
                self._places[groups[pages.group].pop(0)] = column, i

    def column_of(self, layer: int) -> int:
        return self._places[layer][0]

    def rows_of(self, pools: Pools, layer: int) -> Tensor:
        return pools.rows()[:2, self._places[layer][1] * self.block_size * self.num_kv_heads :]

    def place_of(self, memory: Capabilities, seq: Sequence) -> Place:
        """See Blocks; an id of a block that was given back is 0, and is never read."""
        size, tables = self.block_size, memory.group_tables(seq)
        num_blocks = max(table.first // size + len(table.extents) for table in tables)
        ids = np.zeros((len(tables), num_blocks), np.int64)
        for row, table in zip(ids, tables, strict=True):
            row[table.first // size :] = [start // size for start, _ in table.extents]
        return Place(ids, num_blocks * size)


def layout_of(
    memory: Capabilities, num_kv_heads: int, windows: tuple[int | None, ...] = (None,)
) -> Blocks:
    """Extents for policies with one reservation per sequence, pages for those by group; else
    blocks.

    Blocks have one slot if the policy's tables have no regular form. windows: of each layer.
    """
    form = memory.layout
    if isinstance(form, ExtentLayout):
        return Extents(num_kv_heads)
    if isinstance(form, PageLayout):
        size = form.tokens_per_page
    else:
        size = 1 if form is None else form.block_size
    while size > MAX_BLOCK_SIZE:  # a block consists of two half blocks
        if isinstance(form, PageLayout) or size % 2:
            raise InputError(
                key=f"{memory.name}: block_size",
                value=size,
                problem="the paged kernels support up to 256",
            )
        size //= 2
    if isinstance(form, PageLayout):
        return Pages(num_kv_heads, form, windows)
    return Blocks(num_kv_heads, size)


class Tables:
    """Cached places of sequences; one is read again if the sequence's version was raised, or
    past its end.

    A registered prefix, which is no sequence of the policy, has a place here too.
    """

    def __init__(self, memory: Capabilities, layout: Blocks) -> None:
        self.memory = memory
        self.layout = layout
        self._places: dict[int, tuple[int, Place]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, seq_id: object) -> bool:
        return seq_id in self._places

    def place(self, seq: Sequence, num_tokens: int) -> Place:
        """The place of at least the first num_tokens tokens of `seq`."""
        version, place = self._places.get(seq.seq_id, NO_PLACE)
        if version != seq.version or place.num_slots < num_tokens:
            place = self.put(seq, self.layout.place_of(self.memory, seq))
            if place.num_slots < num_tokens:
                raise PlugInError(
                    f"{self.memory.name}: has {place.num_slots} slots for {seq}, which needs "
                    f"{num_tokens}"
                )
        return place

    def put(self, seq: Sequence, place: Place) -> Place:
        """Keep the place of a sequence as it is now."""
        self._places[seq.seq_id] = seq.version, place
        return place

    def end(self, seqs: Iterable[Sequence]) -> None:
        """These sequences are over: their places only take memory."""
        for seq in seqs:
            self._places.pop(seq.seq_id, None)
