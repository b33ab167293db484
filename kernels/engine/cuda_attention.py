"""Attention by the paged kernels, and the common base of attention by kernels."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from testbed.kernels.engine.layout import Ints, Layout, Place, Pools
from testbed.kernels.engine.network import Attention
from testbed.kernels.engine.ragged import Ragged, upload
from testbed.kernels.launch import attention, cache_ops
from testbed.kernels.launch.attention import Workspace, decode_workspace
from testbed.kernels.launch.launch import Launch, stream_pointer
from testbed.kernels.launch.prefill_attention import bind_paged_prefill

SKIP = -1  # a slot that write_cache leaves alone
Step = Callable[[int, int], None]  # of a layer, on a stream
Shapes = dict[str, tuple[tuple[int, ...], DTypeLike]]
WORKSPACE_SEQS, WORKSPACE_CHUNKS = 512, 32  # enough partial results for any decode plan: 32 x 128 are fewer


class CudaAttention(Attention):
    """Base of both kinds: one ragged launch for prompts, one for decodes, after all new K and V are written.

    windows: of each layer, None for full attention. planes: K and V of each layer, as writes and prompts see them;
    `scales` are theirs. The launches of column c read arrays slots<c>, prompt_tables<c> and decode_tables<c>.
    """

    bind_decode: Callable[..., Launch]
    heads_apart = 1  # rows that one token of the batch writes

    def __init__(self, pools: Pools, layout: Layout, windows: tuple[int | None, ...], planes: Tensor) -> None:
        self.pools = pools
        self.layout = layout
        self.planes = self.decode_planes = planes
        self.scales = pools.scales
        self.kinds = [(layout.column_of(layer), window) for layer, window in enumerate(windows)]
        self.pointers = [[rows.data_ptr() for rows in layout.rows_of(pools, i)] for i in range(len(windows))]
        self.now: dict[str, Tensor] = {}
        self.num_prompt_tokens = 0
        self.longest_prompt = 0
        self.longest_context = 0
        self._workspace: Workspace | None = None

    def open(self, batch: Ragged) -> None:
        """Upload the arrays that the launches of all layers read."""
        contexts = np.array([part.context_len for part in batch.parts], np.int32)
        n = batch.num_prompts
        arrays: dict[str, NDArray[Any]] = {
            "starts": batch.query_starts[: n + 1].astype(np.int32),
            "prompt_contexts": contexts[:n],
            "decode_contexts": contexts[n:],
            **self.arrays(batch),
        }
        self.now = upload(arrays, self.pools.device.device)
        self.num_prompt_tokens = batch.num_prompt_tokens
        self.longest_prompt = max((part.new for part in batch.parts[:n]), default=0)
        self.longest_context = int(contexts[n:].max(initial=0))

    def open_decodes(self, arrays: dict[str, Tensor], longest: int) -> None:
        """Prepare for capturing decode layers that read these arrays."""
        self.now = arrays
        self.num_prompt_tokens, self.longest_context = 0, longest

    def bind(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> Callable[[int], None]:
        end, stream = self.num_prompt_tokens, stream_pointer(q)
        steps = [self.write(k, v)]
        if end:
            steps.append(self.prefill(out[:end], q[:end]))
        if end < len(q):
            steps.append(self.by_layer(partial(self._decode, out[end:], q[end:]), attention, self.pools.scales))

        def attend(layer: int) -> None:
            for step in steps:
                step(layer, stream)

        return attend

    def decode_shapes(self, num_seqs: int, longest: int) -> Shapes:
        """The arrays that layers of decodes read, for batches up to this size and context."""
        shapes: Shapes = {"decode_contexts": ((num_seqs,), np.int32)}
        for column in range(self.layout.num_columns):
            shapes[f"slots{column}"] = (num_seqs * self.heads_apart,), np.int64
            shapes[f"decode_tables{column}"] = (num_seqs, self.table_width(longest)), np.int32
        return shapes

    def clear(self, host: dict[str, Any]) -> None:
        """Set these arrays for an empty batch, which reads and writes nothing."""
        host["decode_contexts"][:] = 0
        for column in range(self.layout.num_columns):
            host[f"slots{column}"][:] = SKIP

    @abstractmethod
    def table_width(self, longest: int) -> int:
        """The entries of a sequence's table."""

    @abstractmethod
    def arrays(self, batch: Ragged) -> dict[str, NDArray[Any]]:
        """The arrays of slots that are written, and of slots that each sequence reads."""

    @abstractmethod
    def fill(self, host: dict[str, Any], batch: Ragged, before: list[Place]) -> None:
        """Set the arrays of `decode_shapes` for a batch; entries past the batch keep the values of `clear`.

        `before` are the places of the previous batch.
        """

    def write(self, k: Tensor, v: Tensor) -> Step:
        """Write new K and V to their slots."""

        def bind(column: int, window: int | None) -> Launch:
            slots = self.now[f"slots{column}"]
            return cache_ops.bind_write_cache(self.planes[0], self.planes[1], k, v, slots, kv_scales=first(self.scales))

        return self.by_layer(bind, cache_ops, self.scales)

    def prefill(self, out: Tensor, q: Tensor) -> Step:
        """Attention of the batch's prompts."""

        def bind(column: int, window: int | None) -> Launch:
            places = self.now[f"prompt_tables{column}"], self.now["starts"], self.now["prompt_contexts"]
            more: dict[str, Any] = {"max_query_len": self.longest_prompt, "kv_scales": first(self.scales)}
            return bind_paged_prefill(out, q, self.planes[0], self.planes[1], *places, window=window, **more)

        return self.by_layer(bind, attention, self.scales)

    def _decode(self, out: Tensor, q: Tensor, column: int, window: int | None) -> Launch:
        if self._workspace is None:  # for the partial results of any launch
            shape = (max(WORKSPACE_SEQS, len(q)), *q.shape[1:])
            self._workspace = decode_workspace(q.new_empty(shape), WORKSPACE_CHUNKS)
        places = self.now[f"decode_tables{column}"], self.now["decode_contexts"]
        options = {"max_context_len": self.longest_context, "workspace": self._workspace, "window": window}
        scales = first(self.pools.scales)
        return self.bind_decode(out, q, *self.decode_planes[:2], *places, kv_scales=scales, **options)

    def by_layer(self, bind: Callable[[int, int | None], Launch], places: ModuleType, scales: Tensor | None) -> Step:
        """A launch on the caches of a given layer, bound once for every column and window that layers have.

        places: the module with the indexes of the caches and of their scales among its arguments; scales: by layer.
        """
        launches = {kind: bind(*kind) for kind in set(self.kinds)}
        of_layer, pointers = [launches[kind] for kind in self.kinds], self.pointers
        of_scales = None if scales is None else [scale.data_ptr() for scale in scales]
        k_cache, v_cache, kv_scales = places.K_CACHE, places.V_CACHE, places.KV_SCALES

        def step(layer: int, stream: int) -> None:
            launch, (keys, values) = of_layer[layer], pointers[layer]
            launch.point(k_cache, keys)
            launch.point(v_cache, values)
            if of_scales is not None:
                launch.point(kv_scales, of_scales[layer])
            launch(stream)

        return step


class PagedAttention(CudaAttention):
    """Block tables, and a slot for each new token, by column of the layout."""

    bind_decode = staticmethod(attention.bind_paged_decode)

    def __init__(self, pools: Pools, layout: Layout, windows: tuple[int | None, ...]) -> None:
        super().__init__(pools, layout, windows, pools.blocks(layout.block_size))

    def table_width(self, longest: int) -> int:
        return -(-longest // self.layout.block_size)

    def arrays(self, batch: Ragged) -> dict[str, NDArray[Any]]:
        n, found = batch.num_prompts, dict[str, NDArray[Any]]()
        for column in range(self.layout.num_columns):
            ids = [self.layout.table(place, column) for place in batch.places]
            found[f"prompt_tables{column}"], found[f"decode_tables{column}"] = padded(ids[:n]), padded(ids[n:])
            found[f"slots{column}"] = written(batch, partial(self.layout.slots, column=column))
        return found

    def fill(self, host: dict[str, Any], batch: Ragged, before: list[Place]) -> None:
        num, size = len(batch.parts), self.layout.block_size
        blocks, offsets = np.divmod(batch.positions, size)
        host["decode_contexts"][:num] = batch.positions + 1
        for column in range(self.layout.num_columns):
            tables = host[f"decode_tables{column}"]
            for i, place in enumerate(batch.places):
                if i >= len(before) or before[i] is not place:
                    ids = self.layout.table(place, column)[: tables.shape[1]]
                    tables[i, : len(ids)] = ids
            host[f"slots{column}"][:num] = tables[np.arange(num), blocks].astype(np.int64) * size + offsets


def first(scales: Tensor | None) -> Tensor | None:
    """The scales of layer 0."""
    return None if scales is None else scales[0]


def padded(tables: list[Ints]) -> NDArray[np.int32]:
    """Block tables of unequal length as rows of one array, int32 [num_seqs, longest]."""
    rows = np.zeros((len(tables), max((len(t) for t in tables), default=1)), np.int32)
    for row, table in zip(rows, tables, strict=True):
        row[: len(table)] = table
    return rows


def written(batch: Ragged, where: Callable[[Place, Ints], Ints]) -> Ints:
    """The slots, or rows, of every token of the batch by its place and position; SKIP where it is stored already."""
    found = [np.empty(0, np.int64)]
    for part, place in zip(batch.parts, batch.places, strict=True):
        positions = np.arange(part.num_stored, part.context_len)
        slots = where(place, positions)
        slots[positions < part.written] = SKIP
        found.append(slots.ravel())
    return np.concatenate(found)
