"""Attention by kernels, on blocks or extents: a write of new K and V, a launch for prompts and one
for decodes.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from testbed.core.errors import InputError
from testbed.kernels.engine.layout import Blocks, Extents, Ints, Place, Pools
from testbed.kernels.engine.network import PlainAttention
from testbed.kernels.engine.ragged import Ragged, Shapes, upload
from testbed.kernels.engine.shared_runs import NO_RUN, Run, shared_run
from testbed.kernels.engine.sizes import WORKSPACE_CHUNKS, WORKSPACE_SEQS
from testbed.kernels.launch import attention, cache_ops
from testbed.kernels.launch.attention import FP8_SIZES, Workspace, bind_decode, decode_workspace
from testbed.kernels.launch.decode_plan import equal_shares
from testbed.kernels.launch.launch import Launch, stream_pointer
from testbed.kernels.launch.prefill_attention import bind_prefill, bind_prefix, reads_prefixes

SKIP = -1  # a slot that write_cache leaves alone
Step = Callable[[int, int], None]  # of a layer, on a stream


class CudaAttention(PlainAttention):
    """One ragged launch for prompts, one for decodes, after all new K and V are written.

    windows: of each layer, None for full attention. The launches are bound to the caches of the
    first layer; those of column c read arrays slots<c>, prompt_tables<c> and decode_tables<c>.
    """

    def __init__(self, pools: Pools, layout: Blocks, windows: tuple[int | None, ...]) -> None:
        if pools.scales is not None and (size := pools.spec.head_size) not in FP8_SIZES:
            raise InputError(
                key="model.kv_dtype_bytes",
                value="1",
                problem=f"the kernels of e4m3 have head sizes {FP8_SIZES}, not {size}",
            )
        super().__init__(pools, layout, windows)
        blocks = pools.blocks(layout.block_size)
        keys, values = (blocks.squeeze(3) if isinstance(layout, Extents) else blocks)[:2]
        self.caches = keys, values
        self.scales = None if pools.scales is None else pools.scales[0]
        self.kinds = [(layout.column_of(layer), window) for layer, window in enumerate(windows)]
        self.pointers = [
            [rows.data_ptr() for rows in layout.rows_of(pools, i)] for i in range(len(windows))
        ]
        self.now: dict[str, Tensor] = {}
        self.num_prompt_tokens = 0
        self.longest_prompt = 0
        self.longest_context = 0
        self.shares = False  # True: decodes read the first tokens of a run once
        self._workspace: Workspace | None = None
        self._share_from = inf
        self._token_bytes: int = 2 * keys[0].nbytes // layout.block_size  # of a layer

    def share_prefixes(self, share_from: float) -> None:
        """From now on decodes read the blocks that neighbours begin with once, beside prompts too,
        if share_from bytes of a layer need not be read again. Of some caches they never do.
        """
        plain = self.scales is None and self.layout.num_columns == 1 and not any(self.windows)
        if plain and reads_prefixes(self.caches[0]):
            self._share_from = share_from

    def open(self, batch: Ragged) -> None:
        """Upload the arrays that the launches of all layers read."""
        n, new = batch.num_prompts, [part.new for part in batch.parts]
        contexts = np.array([part.context_len for part in batch.parts], np.int32)
        owners = np.repeat(np.arange(len(new)), new)
        stored = batch.positions < np.array([part.written for part in batch.parts])[owners]
        arrays: dict[str, NDArray[Any]] = {
            "starts": batch.query_starts[: n + 1].astype(np.int32),
            "prompt_contexts": contexts[:n],
            "decode_contexts": contexts[n:],
        }
        for column in range(self.layout.num_columns):
            ids = [place.ids[column] for place in batch.places]
            tables = padded(ids)
            arrays[f"prompt_tables{column}"] = tables[:n, : _longest(ids[:n])]
            arrays[f"decode_tables{column}"] = tables[n:, : _longest(ids[n:])]
            slots = arrays[f"slots{column}"] = self.layout.targets(tables, owners, batch.positions)
            slots[stored] = SKIP
        run = self._run_in(arrays["decode_tables0"], contexts[n:])
        self.shares = run != NO_RUN
        if self.shares:
            arrays |= _of_run(run, len(new) - n)
        self.now = upload(arrays, self.pools.device.device)
        self.num_prompt_tokens = sum(new[:n])
        self.longest_prompt = max(new[:n], default=0)
        self.longest_context = int(contexts[n:].max(initial=0))

    def run_of(self, batch: Ragged) -> Run:
        """The decodes of a batch of decodes whose first tokens are worth reading apart."""
        if self._share_from == inf:
            return NO_RUN
        return self._run_in(padded([place.ids[0] for place in batch.places]), batch.positions + 1)

    def _run_in(self, tables: NDArray[np.int32], contexts: NDArray[Any]) -> Run:
        if self._share_from == inf or (tables[1:, 0] != tables[:-1, 0]).all():
            return NO_RUN
        run = shared_run(tables, contexts, self.layout.block_size)
        return run if self._pays(run) else NO_RUN

    def may_share(self, num_seqs: int, longest: int) -> bool:
        """True if a batch of num_seqs decodes of at most `longest` tokens may have such a run."""
        return self._pays(Run(0, num_seqs, longest))

    def _pays(self, run: Run) -> bool:
        return run.repeated * self._token_bytes >= self._share_from

    def open_decodes(self, arrays: dict[str, Tensor], longest: int, shares: bool) -> None:
        """Prepare for capturing decode layers that read these arrays. shares: those of a run
        too.
        """
        self.now, self.shares = arrays, shares
        self.num_prompt_tokens, self.longest_context = 0, longest

    def decode_shapes(self, num_seqs: int, longest: int) -> Shapes:
        """The arrays that layers of decodes read, for batches up to this size and context."""
        shapes: dict[str, tuple[tuple[int, ...], DTypeLike]] = {
            "decode_contexts": ((num_seqs,), np.int32),
            "run": ((2,), np.int32),
            "prefixes": ((num_seqs,), np.int32),
        }
        tables, owners = (
            np.zeros((num_seqs, self.layout.table_width(longest)), np.int32),
            np.arange(num_seqs),
        )
        for column in range(self.layout.num_columns):
            shapes[f"slots{column}"] = (
                self.layout.targets(tables, owners, owners * 0).shape,
                np.int64,
            )
            shapes[f"decode_tables{column}"] = tables.shape, np.int32
        return shapes

    def clear(self, host: dict[str, Any]) -> None:
        """Set these arrays for an empty batch, which reads and writes nothing."""
        for name in ("decode_contexts", "run", "prefixes"):
            host[name][:] = 0
        for column in range(self.layout.num_columns):
            host[f"slots{column}"][:] = SKIP

    def fill(
        self, host: dict[str, Any], batch: Ragged, before: list[Place], run: Run = NO_RUN
    ) -> None:
        """Set the arrays of `decode_shapes` for a batch; entries past the batch keep the values of
        `clear`.

        `before` are the places of the previous batch.
        """
        num = len(batch.parts)
        host["decode_contexts"][:num] = batch.positions + 1
        for name, values in _of_run(run, num).items():
            host[name][: len(values)] = values
        for column in range(self.layout.num_columns):
            tables = host[f"decode_tables{column}"]
            for i, place in enumerate(batch.places):
                if i >= len(before) or before[i] is not place:
                    ids = place.ids[column][: tables.shape[1]]
                    tables[i, : len(ids)] = ids
            host[f"slots{column}"][:num] = self.layout.targets(
                tables, np.arange(num), batch.positions
            )

    def bind(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> Callable[[int], None]:
        end, stream = self.num_prompt_tokens, stream_pointer(q)
        steps = [self._by_layer(partial(self._write, k, v), cache_ops)]
        if end:
            steps.append(self._by_layer(partial(self._prefill, out[:end], q[:end]), attention))
        if end < len(q) and self.shares:
            steps.append(self._by_layer(partial(self._prefix, q[end:]), attention))
        if end < len(q):
            steps.append(self._by_layer(partial(self._decode, out[end:], q[end:]), attention))

        def attend(layer: int) -> None:
            for step in steps:
                step(layer, stream)

        return attend

    def _write(self, k: Tensor, v: Tensor, column: int, window: int | None) -> Launch:
        return cache_ops.bind_write_cache(
            *self.caches, k, v, self.now[f"slots{column}"], kv_scales=self.scales
        )

    def _prefill(self, out: Tensor, q: Tensor, column: int, window: int | None) -> Launch:
        places = self.now[f"prompt_tables{column}"], self.now["starts"], self.now["prompt_contexts"]
        options: dict[str, Any] = {"kv_scales": self.scales, "window": window}
        return bind_prefill(
            out, q, *self.caches, *places, max_query_len=self.longest_prompt, **options
        )

    def _workspace_for(self, q: Tensor) -> Workspace:
        """For the partial results of any launch."""
        if self._workspace is None:
            shape = (max(WORKSPACE_SEQS, len(q)), *q.shape[1:])
            self._workspace = decode_workspace(q.new_empty(shape), WORKSPACE_CHUNKS)
        return self._workspace

    def _prefix(self, q: Tensor, column: int, window: int | None) -> Launch:
        places = (self.now[name] for name in (f"decode_tables{column}", "run", "prefixes"))
        options: dict[str, Any] = {"workspace": self._workspace_for(q), "max_run": len(q)}
        return bind_prefix(q, *self.caches, *places, **options)

    def _decode(self, out: Tensor, q: Tensor, column: int, window: int | None) -> Launch:
        places = self.now[f"decode_tables{column}"], self.now["decode_contexts"]
        options: dict[str, Any] = {
            "kv_scales": self.scales,
            "window": window,
            "workspace": self._workspace_for(q),
        }
        if self.shares:  # lengths behind the prefix are known on the device only
            options |= {"prefixes": self.now["prefixes"], "plan": equal_shares(q.shape[2])}
        return bind_decode(
            out, q, *self.caches, *places, max_context_len=self.longest_context, **options
        )

    def _by_layer(self, bind: Callable[[int, int | None], Launch], places: ModuleType) -> Step:
        """A launch on the caches of a given layer, bound once for every column and window that
        layers have.

        places: the module with the indexes of the caches and of their scales among its arguments.
        """
        launches = {kind: bind(*kind) for kind in set(self.kinds)}
        of_layer, pointers = [launches[kind] for kind in self.kinds], self.pointers
        scales = (
            None if self.pools.scales is None else [scale.data_ptr() for scale in self.pools.scales]
        )
        k_cache, v_cache, kv_scales = places.K_CACHE, places.V_CACHE, places.KV_SCALES

        def step(layer: int, stream: int) -> None:
            launch, (keys, values) = of_layer[layer], pointers[layer]
            launch.point(k_cache, keys)
            launch.point(v_cache, values)
            if scales is not None:
                launch.point(kv_scales, scales[layer])
            launch(stream)

        return step


def _of_run(run: Run, num_seqs: int) -> dict[str, NDArray[np.int32]]:
    """The arrays that say what the decodes of a run share, of a batch of num_seqs."""
    prefixes = np.zeros(num_seqs, np.int32)
    prefixes[run.first : run.last] = run.tokens
    return {"run": np.array([run.first, run.last], np.int32), "prefixes": prefixes}


def padded(tables: list[Ints]) -> NDArray[np.int32]:
    """Tables of unequal length as rows of one array, int32 [num_seqs, longest]."""
    rows = np.zeros((len(tables), _longest(tables)), np.int32)
    for row, table in zip(rows, tables, strict=True):
        row[: len(table)] = table
    return rows


def _longest(tables: list[Ints]) -> int:
    return max(map(len, tables), default=1)
