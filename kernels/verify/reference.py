"""Slow, simple versions of every kernel in torch, for any device and precision; and random ragged
batches for both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

UNUSED_ID = 1 << 29  # in table entries past a context: a kernel that reads it faults
NAN_E4M3 = 0x7F  # the byte
DEVICE = "cuda"  # of random batches


def on_device(array: np.ndarray) -> Tensor:
    """A copy on the device of the batches."""
    return torch.from_numpy(array).to(DEVICE)


def gather(cache: Tensor, table: Tensor, context_len: int) -> Tensor:
    """K or V of one sequence, [context_len, num_kv_heads, head_size], from [num_blocks, kv heads,
    block_size, size].
    """
    num_blocks = -(-context_len // cache.shape[2])
    blocks = cache[table[:num_blocks].long()]
    return blocks.transpose(1, 2).reshape(-1, cache.shape[1], cache.shape[3])[:context_len]


def full_attention(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> Tensor:
    """Causal attention of the last q.shape[0] tokens of a sequence: two passes (maximum and sum,
    then values).

    q: [num_new, num_heads, head_size]; k, v: [context_len, num_kv_heads, head_size]; GQA by
    repeating K and V. window: the last tokens that a token reads, itself included.
    """
    group, past = q.shape[1] // k.shape[1], k.shape[0] - q.shape[0]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.einsum("ihd,jhd->hij", q, k) * q.shape[2] ** -0.5
    position = torch.arange(q.shape[0], device=q.device)[:, None] + past
    tokens = torch.arange(k.shape[0], device=q.device)
    hidden = (
        tokens > position if window is None else (tokens > position) | (tokens <= position - window)
    )
    scores = scores.masked_fill(hidden, -torch.inf)
    weights = torch.exp(scores - scores.amax(dim=2, keepdim=True))
    return torch.einsum("hij,jhd->ihd", weights / weights.sum(dim=2, keepdim=True), v)


def quantized(x: Tensor, scale: Tensor) -> Tensor:
    """x [..., heads, size] divided by its head's scale, as bytes of e4m3; values beyond 448 become
    448.
    """
    y = (x.float() / scale[:, None]).clamp(-448, 448)
    return y.to(torch.float8_e4m3fn).view(torch.uint8)


def dequantized(x: Tensor, scale: Tensor) -> Tensor:
    """The values of bytes of e4m3 [..., heads, size] in float32."""
    return x.view(torch.float8_e4m3fn).float() * scale[:, None]


def paged_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_lens: list[int],
    context_lens: list[int],
    window: int | None = None,
) -> Tensor:
    """float64 result of the prefill kernels, and of decode with query_lens of 1; no context gives
    zeros.
    """
    out, start = torch.zeros(q.shape, dtype=torch.float64, device=q.device), 0
    for i, (num_new, length) in enumerate(zip(query_lens, context_lens, strict=True)):
        if length:
            k, v = (gather(cache, block_tables[i], length).double() for cache in (k_cache, v_cache))
            out[start : start + num_new] = full_attention(
                q[start : start + num_new].double(), k, v, window=window
            )
        start += num_new
    return out


def paper_layout(k_cache: Tensor, v_cache: Tensor) -> tuple[Tensor, Tensor]:
    """K and V as the paper's kernel reads them: [blocks, heads, size / 8, block_size, 8], [..,
    size, block_size].
    """
    keys = k_cache.unflatten(3, (-1, 8)).transpose(2, 3)
    return keys.contiguous(), v_cache.mT.contiguous()


def write_cache(cache: Tensor, new: Tensor, slot_mapping: list[int]) -> None:
    """Write new keys or values to [num_blocks, num_kv_heads, block_size, head_size], token by
    token.
    """
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            cache[slot // cache.shape[2], :, slot % cache.shape[2]] = new[token]


def relative_error(output: Tensor, expected: Tensor) -> float:
    """Largest over rows and heads of max|output - expected| / max|expected|; infinite if an
    output is NaN.
    """
    output = output.double()
    error = (output - expected).abs().amax(dim=-1) / expected.abs().amax(dim=-1).clamp_min(1e-30)
    return (
        float("inf")
        if not torch.isfinite(output).all()
        else float(error.max())
        if error.numel()
        else 0.0
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """Heads and storage of a batch."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    block_size: int = 16
    dtype: torch.dtype = torch.float16


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a cache: as e4m3, and by a window."""

    fp8: bool = False
    window: int | None = None

    def __str__(self) -> str:
        return "".join([", fp8"] * self.fp8 + [", window"] * (self.window is not None))


PLAIN = Form()


@dataclass(frozen=True, slots=True)
class Batch:
    """One paged batch on the device; lens are Python ints, with a device copy. kv_scales: of caches
    of e4m3.
    """

    shape: Shape
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    context_lens: Tensor
    lens: list[int]
    kv_scales: Tensor | None = None

    @property
    def values(self) -> tuple[Tensor, Tensor]:
        """K and V as numbers."""
        if self.kv_scales is None:
            return self.k_cache, self.v_cache
        pairs = zip((self.k_cache, self.v_cache), self.kv_scales, strict=True)
        k, v = (dequantized(x.transpose(1, 2), scale).transpose(1, 2) for x, scale in pairs)
        return k, v

    def quantized(self, rng: np.random.Generator) -> "Batch":
        """The batch with caches of e4m3 by random scales, of which some values exceed the range."""
        scales = torch.from_numpy(
            rng.uniform(0.005, 0.05, (2, self.shape.num_kv_heads)).astype(np.float32)
        ).to(DEVICE)
        pairs = zip((self.k_cache, self.v_cache), scales, strict=True)
        k, v = (
            quantized(x.transpose(1, 2), scale).transpose(1, 2).contiguous() for x, scale in pairs
        )
        return replace(self, k_cache=k, v_cache=v, kv_scales=scales)

    def without_unread(self, window: int | None, news: Sequence[int]) -> "Batch":
        """The batch whose table entries before the windows of its new tokens name a block of
        NaN.
        """
        tables, size = self.block_tables.clone(), self.shape.block_size
        spare = (set(range(len(self.k_cache))) - set(tables.flatten().tolist())).pop()
        for table, length, new in zip(tables, self.lens, news, strict=True):
            table[: max(0, length - new + 1 - (window or length)) // size] = spare
        return replace(self, block_tables=tables)


def shuffled_tables(
    rng: np.random.Generator, num_blocks: Sequence[int] | np.ndarray, spare: int, shared: bool
) -> tuple[np.ndarray, int]:
    """A permuted block table and the pool size; if `shared`, sequences start with blocks of the
    first one.
    """
    counts = np.array(num_blocks)
    table, total = (
        np.full((len(counts), max(1, counts.max())), UNUSED_ID, np.int32),
        int(counts.sum()) + spare,
    )
    table[np.arange(table.shape[1]) < counts[:, None]] = rng.permutation(total)[: counts.sum()]
    for row, count in enumerate(counts[1:] if shared else (), 1):
        if rng.random() < 0.5:
            common = int(rng.integers(0, min(count, counts[0]) + 1))
            table[row, :common] = table[0, :common]
    return table, total


def random_batch(
    rng: np.random.Generator, shape: Shape, lens: Sequence[int], num_queries: int | None = None
) -> Batch:
    """A batch with NaN in its slots without an owner and blocks; inputs are first rounded to the
    storage type. K and V are halves of one allocation, since kind=tma reads both by one map.
    """
    blocks = [-(-length // shape.block_size) for length in lens]
    table, total = shuffled_tables(rng, blocks, spare=3, shared=bool(rng.random() < 0.5))
    owned = np.zeros((total, shape.block_size), bool)
    for row, length in zip(table, lens, strict=True):
        ids, offsets = np.divmod(np.arange(length), shape.block_size)
        owned[row[ids], offsets] = True
    mask = on_device(owned)[:, None, :, None]
    generator = torch.Generator(DEVICE).manual_seed(int(rng.integers(1 << 62)))

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=DEVICE).to(shape.dtype)

    size = (2, total, shape.num_kv_heads, shape.block_size, shape.head_size)
    k_cache, v_cache = normal(*size).masked_fill_(~mask, float("nan"))
    q = normal(len(lens) if num_queries is None else num_queries, shape.num_heads, shape.head_size)
    tables, context_lens = (
        on_device(table),
        torch.tensor(list(lens), dtype=torch.int32).to(DEVICE),
    )
    return Batch(
        shape=shape,
        q=q,
        k_cache=k_cache,
        v_cache=v_cache,
        block_tables=tables,
        context_lens=context_lens,
        lens=list(lens),
    )


def to_extents(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The same keys and values in one extent per sequence, with NaN in unused slots: K pool, V
    pool, which are halves of one allocation, and extents.
    """
    shape, capacities = (
        batch.shape,
        [length + 1 + 5 * (i % 2) for i, length in enumerate(batch.lens)],
    )
    *firsts, total = np.cumsum([0, *capacities]).tolist()
    nothing = NAN_E4M3 if batch.kv_scales is not None else float("nan")
    size = (2, total, shape.num_kv_heads, shape.head_size)
    pools = torch.full(size, nothing, dtype=batch.k_cache.dtype, device=DEVICE)
    for pool, cache in zip(pools, (batch.k_cache, batch.v_cache), strict=True):
        for first, capacity, length, table in zip(
            firsts, capacities, batch.lens, batch.block_tables, strict=True
        ):
            extent = pool[first : first + capacity].view(
                shape.num_kv_heads, capacity, shape.head_size
            )
            extent[:, :length] = gather(cache, table, length).transpose(0, 1)
    extents = torch.tensor(list(zip(firsts, capacities, strict=True)), dtype=torch.int32).to(DEVICE)
    return pools[0], pools[1], extents
