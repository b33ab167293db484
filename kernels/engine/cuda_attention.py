"""Attention by the paged kernels, and the common base of attention by kernels."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from testbed.kernels.engine.layout import Ints, Layout, Place, Pools
from testbed.kernels.engine.plain_attention import Attention
from testbed.kernels.engine.ragged import Ragged, upload
from testbed.kernels.launch import attention, cache_ops
from testbed.kernels.launch.arrays import stream_pointer
from testbed.kernels.launch.attention import Workspace, decode_workspace
from testbed.kernels.launch.launch import Launch
from testbed.kernels.launch.prefill_attention import bind_paged_prefill

SKIP = -1  # a slot that write_cache leaves alone
Step = Callable[[int, int], None]  # of a layer, on a stream
Shapes = dict[str, tuple[tuple[int, ...], DTypeLike]]
WORKSPACE_SEQS, WORKSPACE_CHUNKS = 512, 32  # enough partial results for any decode plan: 32 x 128 are fewer


class CudaAttention(Attention):
    """Base of both kinds: one ragged launch for prompts, one for decodes, after all new K and V are written."""

    def __init__(self, pools: Pools, layout: Layout, planes: Tensor) -> None:
        self.pools = pools
        self.layout = layout
        self.planes = planes
        self.pointers = [plane.data_ptr() for plane in planes]
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

    def bind(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> Callable[[int], None]:
        end, stream = self.num_prompt_tokens, stream_pointer(q)
        steps = [self.write(k, v)]
        if end:
            steps.append(self.prefill(out[:end], q[:end]))
        if end < len(q):
            steps.append(self.decode(out[end:], q[end:]))

        def attend(layer: int) -> None:
            for step in steps:
                step(layer, stream)

        return attend

    def open_decodes(self, arrays: dict[str, Tensor], longest: int) -> None:
        """Prepare for capturing decode layers that read these arrays."""
        self.now = arrays
        self.num_prompt_tokens, self.longest_context = 0, longest

    def workspace(self, q: Tensor) -> Workspace:
        """Memory for the partial results of any decode launch."""
        if self._workspace is None:
            shape = (max(WORKSPACE_SEQS, len(q)), *q.shape[1:])
            self._workspace = decode_workspace(q.new_empty(shape), WORKSPACE_CHUNKS)
        return self._workspace

    @abstractmethod
    def arrays(self, batch: Ragged) -> dict[str, NDArray[Any]]:
        """The arrays of slots that are written, and of slots that each sequence reads."""

    @abstractmethod
    def decode_shapes(self, num_seqs: int, longest: int) -> Shapes:
        """The arrays that layers of decodes read, for batches up to this size and context."""

    @abstractmethod
    def fill(self, host: dict[str, Any], batch: Ragged, before: list[Place]) -> None:
        """Set these arrays for a batch of decodes; entries past the batch keep the values of `clear`.

        `before` are the places of the previous batch.
        """

    @abstractmethod
    def clear(self, host: dict[str, Any]) -> None:
        """Set these arrays for an empty batch, which reads and writes nothing."""

    @abstractmethod
    def write(self, k: Tensor, v: Tensor) -> Step:
        """Write new K and V to their slots."""

    @abstractmethod
    def prefill(self, out: Tensor, q: Tensor) -> Step:
        """Attention of the batch's prompts."""

    @abstractmethod
    def decode(self, out: Tensor, q: Tensor) -> Step:
        """Attention of the batch's decodes."""

    def caches(self, layer: int) -> tuple[Tensor, Tensor]:
        """A layer's K and V in the shape that the kernels of this layout take."""
        return self.planes[2 * layer], self.planes[2 * layer + 1]

    def by_layer(self, launch: Launch, k_cache: int) -> Step:
        """A launch on the caches of a given layer; k_cache is the index of the caches among its arguments."""
        planes = self.pointers

        def step(layer: int, stream: int) -> None:
            launch.point(k_cache, planes[2 * layer])
            launch.point(k_cache + 1, planes[2 * layer + 1])
            launch(stream)

        return step


class PagedAttention(CudaAttention):
    """Block tables, and a slot for each new token."""

    def __init__(self, pools: Pools, layout: Layout) -> None:
        super().__init__(pools, layout, pools.blocks(layout.block_size))

    def arrays(self, batch: Ragged) -> dict[str, NDArray[Any]]:
        n, ids = batch.num_prompts, [place.ids for place in batch.places]
        return {
            "prompt_tables": padded(ids[:n]),
            "decode_tables": padded(ids[n:]),
            "slots": written_slots(batch, self.layout),
        }

    def decode_shapes(self, num_seqs: int, longest: int) -> Shapes:
        width = -(-longest // self.layout.block_size)
        one: tuple[int, ...] = (num_seqs,)
        tables = (num_seqs, width), np.int32
        return {"slots": (one, np.int64), "decode_contexts": (one, np.int32), "decode_tables": tables}

    def clear(self, host: dict[str, Any]) -> None:
        host["slots"][:], host["decode_contexts"][:] = SKIP, 0

    def fill(self, host: dict[str, Any], batch: Ragged, before: list[Place]) -> None:
        tables, num, size = host["decode_tables"], len(batch.parts), self.layout.block_size
        for i, place in enumerate(batch.places):
            if i >= len(before) or before[i] is not place:
                ids = place.ids[: tables.shape[1]]
                tables[i, : len(ids)] = ids
        blocks, offsets = np.divmod(batch.positions, size)
        host["slots"][:num] = tables[np.arange(num), blocks].astype(np.int64) * size + offsets
        host["decode_contexts"][:num] = batch.positions + 1

    def write(self, k: Tensor, v: Tensor) -> Step:
        launch = cache_ops.bind_write_cache(*self.caches(0), k, v, self.now["slots"])
        return self.by_layer(launch, cache_ops.K_CACHE)

    def prefill(self, out: Tensor, q: Tensor) -> Step:
        now = self.now
        launch = bind_paged_prefill(
            out, q, *self.caches(0), now["prompt_tables"], now["starts"], now["prompt_contexts"],
            max_query_len=self.longest_prompt,
        )  # fmt: skip
        return self.by_layer(launch, attention.K_CACHE)

    def decode(self, out: Tensor, q: Tensor) -> Step:
        launch = attention.bind_paged_decode(
            out, q, *self.caches(0), self.now["decode_tables"], self.now["decode_contexts"],
            max_context_len=self.longest_context, workspace=self.workspace(q),
        )  # fmt: skip
        return self.by_layer(launch, attention.K_CACHE)


def padded(tables: list[Ints]) -> NDArray[np.int32]:
    """Block tables of unequal length as rows of one array, int32 [num_seqs, longest]."""
    rows = np.zeros((len(tables), max((len(t) for t in tables), default=1)), np.int32)
    for row, table in zip(rows, tables, strict=True):
        row[: len(table)] = table
    return rows


def written_slots(batch: Ragged, layout: Layout) -> Ints:
    """The slot of every token of the batch; SKIP where its K and V are stored already."""
    slots = [np.empty(0, np.int64)]
    for part, place in zip(batch.parts, batch.places, strict=True):
        positions = np.arange(part.num_stored, part.context_len)
        slots.append(np.where(positions < part.written, SKIP, layout.slots(place, positions)))
    return np.concatenate(slots)
