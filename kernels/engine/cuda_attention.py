"""Attention by the paged kernels, and what attention by any kernels has in common."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from kernels.engine.layout import Ints, Layout, Place
from kernels.engine.plain_attention import Attention
from kernels.engine.pools import Pools
from kernels.engine.ragged import Ragged
from kernels.engine.upload import upload
from kernels.launch import attention, cache_ops
from kernels.launch.arrays import stream_pointer
from kernels.launch.attention import Workspace, decode_workspace
from kernels.launch.launch import Launch
from kernels.launch.prefill_attention import bind_paged_prefill

SKIP = -1  # a slot that write_cache leaves alone
Step = Callable[[int, int], None]  # of a layer, on a stream
Shapes = dict[str, tuple[tuple[int, ...], type]]
WORKSPACE_SEQS, WORKSPACE_CHUNKS = 512, 32  # as many partial results as any decode plan needs: 32 x 128 are fewer


class CudaAttention(Attention):
    """What both kinds share: prompts in one ragged launch, decodes in another, after all new K and V are written."""

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
        """Upload what the launches of every layer read."""
        contexts = np.array([part.context_len for part in batch.parts], np.int32)
        n = batch.num_prompts
        arrays = {
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
        """See Attention."""
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
        """The next layers are captured: decodes alone, which read these arrays."""
        self.now = arrays
        self.num_prompt_tokens, self.longest_context = 0, longest

    def workspace(self, q: Tensor) -> Workspace:
        """Room for the partial results of any decode launch."""
        if self._workspace is None:
            shape = (max(WORKSPACE_SEQS, len(q)), *q.shape[1:])
            self._workspace = decode_workspace(q.new_empty(shape), WORKSPACE_CHUNKS)
        return self._workspace

    @abstractmethod
    def arrays(self, batch: Ragged) -> dict[str, Ints]:
        """Where tokens are written, and where each sequence's are read."""

    @abstractmethod
    def decode_shapes(self, num_seqs: int, longest: int) -> Shapes:
        """The arrays that layers of decodes read, for batches up to this size and context."""

    @abstractmethod
    def fill(self, host: dict[str, Any], batch: Ragged, before: list[Place]) -> None:
        """Set these arrays for a batch of decodes; the rest stays as `clear` leaves it.

        `before` are the places of the last batch that they were set for.
        """

    @abstractmethod
    def clear(self, host: dict[str, Any]) -> None:
        """Set these arrays for a batch of nobody: nothing is read or written."""

    @abstractmethod
    def write(self, k: Tensor, v: Tensor) -> Step:
        """New K and V to their slots."""

    @abstractmethod
    def prefill(self, out: Tensor, q: Tensor) -> Step:
        """The prompts' part of the batch."""

    @abstractmethod
    def decode(self, out: Tensor, q: Tensor) -> Step:
        """The decodes' part of the batch."""

    def caches(self, layer: int) -> tuple[Tensor, Tensor]:
        """A layer's K and V as the kernels of this layout take them."""
        return self.planes[2 * layer], self.planes[2 * layer + 1]

    def by_layer(self, launch: Launch, k_cache: int) -> Step:
        """A launch on the caches of the layer that is asked for; k_cache is their place among its arguments."""
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

    def arrays(self, batch: Ragged) -> dict[str, Ints]:
        """See CudaAttention."""
        n, ids = batch.num_prompts, [place.ids for place in batch.places]
        return {
            "prompt_tables": padded(ids[:n]),
            "decode_tables": padded(ids[n:]),
            "slots": written_slots(batch, self.layout),
        }

    def decode_shapes(self, num_seqs: int, longest: int) -> Shapes:
        """See CudaAttention."""
        width = -(-longest // self.layout.block_size)
        one: tuple[int, ...] = (num_seqs,)
        tables = (num_seqs, width), np.int32
        return {"slots": (one, np.int64), "decode_contexts": (one, np.int32), "decode_tables": tables}

    def clear(self, host: dict[str, Any]) -> None:
        """See CudaAttention."""
        host["slots"][:], host["decode_contexts"][:] = SKIP, 0

    def fill(self, host: dict[str, Any], batch: Ragged, before: list[Place]) -> None:
        """See CudaAttention."""
        tables, num, size = host["decode_tables"], len(batch.parts), self.layout.block_size
        for i, place in enumerate(batch.places):
            if i >= len(before) or before[i] is not place:
                ids = place.ids[: tables.shape[1]]
                tables[i, : len(ids)] = ids
        blocks, offsets = np.divmod(batch.positions, size)
        host["slots"][:num] = tables[np.arange(num), blocks].astype(np.int64) * size + offsets
        host["decode_contexts"][:num] = batch.positions + 1

    def write(self, k: Tensor, v: Tensor) -> Step:
        """See CudaAttention."""
        launch = cache_ops.bind_write_cache(*self.caches(0), k, v, self.now["slots"])
        return self.by_layer(launch, cache_ops.K_CACHE)

    def prefill(self, out: Tensor, q: Tensor) -> Step:
        """See CudaAttention."""
        now = self.now
        launch = bind_paged_prefill(
            out, q, *self.caches(0), now["prompt_tables"], now["starts"], now["prompt_contexts"],
            max_query_len=self.longest_prompt,
        )  # fmt: skip
        return self.by_layer(launch, attention.K_CACHE)

    def decode(self, out: Tensor, q: Tensor) -> Step:
        """See CudaAttention."""
        launch = attention.bind_paged_decode(
            out, q, *self.caches(0), self.now["decode_tables"], self.now["decode_contexts"],
            max_context_len=self.longest_context, workspace=self.workspace(q),
        )  # fmt: skip
        return self.by_layer(launch, attention.K_CACHE)


def padded(tables: list[Ints]) -> Ints:
    """Block tables of unequal length as rows of one array, int32 [num_seqs, longest]."""
    rows = np.zeros((len(tables), max((len(t) for t in tables), default=1)), np.int32)
    for row, table in zip(rows, tables, strict=True):
        row[: len(table)] = table
    return rows


def written_slots(batch: Ragged, layout: Layout) -> Ints:
    """The slot of every token of the batch; SKIP where its K and V are stored already."""
    slots = [np.empty(0, np.int64)]
    for part, place in zip(batch.parts, batch.places, strict=True):
        positions = np.arange(part.stored, part.context_len)
        slots.append(np.where(positions < part.written, SKIP, layout.slots(place, positions)))
    return np.concatenate(slots)
