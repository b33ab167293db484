"""Slow, simple versions of every kernel in torch, for any device and precision: the references of the kernels."""

import torch
from torch import Tensor

NAN_E4M3 = 0x7F  # the byte


def gather(cache: Tensor, table: Tensor, context_len: int) -> Tensor:
    """K or V of one sequence, [context_len, num_kv_heads, head_size], from [num_blocks, kv heads, block_size, size]."""
    num_blocks = -(-context_len // cache.shape[2])
    blocks = cache[table[:num_blocks].long()]
    return blocks.transpose(1, 2).reshape(-1, cache.shape[1], cache.shape[3])[:context_len]


def full_attention(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, window: int | None = None) -> Tensor:
    """Causal attention of the last q.shape[0] tokens of a sequence: two passes (maximum and sum, then values).

    q: [num_new, num_heads, head_size]; k, v: [context_len, num_kv_heads, head_size]; GQA by repeating K and V.
    window: a token reads the last so many tokens, itself included.
    """
    group, past = q.shape[1] // k.shape[1], k.shape[0] - q.shape[0]
    scale = q.shape[2] ** -0.5 if scale is None else scale
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.einsum("ihd,jhd->hij", q, k) * scale
    position = torch.arange(q.shape[0], device=q.device)[:, None] + past
    tokens = torch.arange(k.shape[0], device=q.device)
    hidden = tokens > position if window is None else (tokens > position) | (tokens <= position - window)
    scores = scores.masked_fill(hidden, -torch.inf)
    weights = torch.exp(scores - scores.amax(dim=2, keepdim=True))
    return torch.einsum("hij,jhd->ihd", weights / weights.sum(dim=2, keepdim=True), v)


def quantized(x: Tensor, scale: Tensor) -> Tensor:
    """x [..., heads, size] divided by its head's scale, as bytes of e4m3; values beyond 448 become 448."""
    y = (x.float() / scale[:, None]).clamp(-448, 448)
    return y.to(torch.float8_e4m3fn).view(torch.uint8)


def dequantized(x: Tensor, scale: Tensor) -> Tensor:
    """The values of bytes of e4m3 [..., heads, size] in float32."""
    return x.view(torch.float8_e4m3fn).float() * scale[:, None]


def paged_decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: list[int],
    window: int | None = None,
) -> Tensor:  # fmt: skip
    """float64 result of the decode kernels; a sequence without context gives zeros."""
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    for i, length in enumerate(context_lens):
        if length:
            k, v = (gather(cache, block_tables[i], length).double() for cache in (k_cache, v_cache))
            out[i] = full_attention(q[i : i + 1].double(), k, v, window=window)[0]
    return out


def paged_prefill(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, query_lens: list[int], context_lens: list[int],
    window: int | None = None,
) -> Tensor:  # fmt: skip
    """float64 result of the prefill kernel."""
    out, start = torch.zeros(q.shape, dtype=torch.float64, device=q.device), 0
    for i, (num_new, length) in enumerate(zip(query_lens, context_lens, strict=True)):
        k, v = (gather(cache, block_tables[i], length).double() for cache in (k_cache, v_cache))
        out[start : start + num_new] = full_attention(q[start : start + num_new].double(), k, v, window=window)
        start += num_new
    return out


def interleave_keys(k_cache: Tensor) -> Tensor:
    """[blocks, heads, block_size, size] -> the paper kernel's [blocks, heads, size / 8, block_size, 8]."""
    blocks, heads, block_size, size = k_cache.shape
    return k_cache.reshape(blocks, heads, block_size, size // 8, 8).transpose(2, 3).contiguous()


def transpose_values(v_cache: Tensor) -> Tensor:
    """[blocks, heads, block_size, size] -> the paper kernel's [blocks, heads, size, block_size]."""
    return v_cache.transpose(2, 3).contiguous()


def write_cache(cache: Tensor, new: Tensor, slot_mapping: list[int]) -> None:
    """Write new keys or values to [num_blocks, num_kv_heads, block_size, head_size], token by token."""
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            cache[slot // cache.shape[2], :, slot % cache.shape[2]] = new[token]


def relative_error(got: Tensor, want: Tensor) -> float:
    """Largest over rows and heads of max|got - want| / max|want|; infinite where an output is NaN."""
    got = got.double()
    error = (got - want).abs().amax(dim=-1) / want.abs().amax(dim=-1).clamp_min(1e-30)
    return float("inf") if not torch.isfinite(got).all() else float(error.max()) if error.numel() else 0.0
