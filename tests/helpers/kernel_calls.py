"""Small valid calls of the launch wrappers, as keyword arguments that a test changes.

Queries, keys and values are rows of a wider product, 384 elements a head apart, as in the engine.
"""

from fake_gpu import FakeArray, e4m3, float32, int32, int64

ROW_OF_PRODUCT = 384  # elements from a token's row to the next, per head


def rows_of_product(num_tokens, num_heads, head_size):
    """Part of a product [num_tokens, ...]: rows may be strided, heads are dense."""
    strides = (ROW_OF_PRODUCT * num_heads, head_size, 1)
    return FakeArray(num_tokens, num_heads, head_size, element_strides=strides)


def caches(*shape, make=FakeArray):
    """K and V caches of one shape."""
    return {"k_cache": make(*shape), "v_cache": make(*shape)}


def decode_call(num_seqs=2, num_heads=8, head_size=64, **changes):
    """Two sequences of at most 40 tokens in blocks of 16: 2 KV heads, each read by 4 heads."""
    return {
        "out": FakeArray(num_seqs, num_heads, head_size),
        "q": rows_of_product(num_seqs, num_heads, head_size),
        **caches(5, 2, 16, head_size),
        "places": int32(num_seqs, 3),
        "context_lens": int32(num_seqs),
        "max_context_len": 40,
    } | changes


def extents_call(**changes):
    """The same in contiguous extents of a pool of 80 slots."""
    return decode_call(**caches(80, 2, 64), places=int32(2, 2)) | changes


def e4m3_call(**changes):
    """The same with caches of one byte a value."""
    return decode_call(**caches(5, 2, 16, 64, make=e4m3), kv_scales=float32(2, 2)) | changes


def paper_decode_call(**changes):
    """The same in the paper's layout of keys and values."""
    keys, values = FakeArray(5, 2, 8, 16, 8), FakeArray(5, 2, 64, 16)
    return decode_call(k_cache=keys, v_cache=values) | changes


def prefill_call(num_tokens=900, num_heads=32, head_size=128, num_seqs=3, **changes):
    """Three prompts of at most 300 new tokens: 8 KV heads, each read by 4 heads."""
    return {
        "out": FakeArray(num_tokens, num_heads, head_size),
        "q": rows_of_product(num_tokens, num_heads, head_size),
        **caches(4000, num_heads // 4, 16, head_size),
        "places": int32(num_seqs, 70),
        "query_starts": int32(num_seqs + 1),
        "context_lens": int32(num_seqs),
        "max_query_len": 300,
    } | changes


def e4m3_prefill_call(**changes):
    """Two prompts of at most 5 new tokens, with caches of one byte a value."""
    small = prefill_call(9, 8, 64, 2, **caches(5, 2, 16, 64, make=e4m3), kv_scales=float32(2, 2))
    return small | {"places": int32(2, 3), "max_query_len": 5} | changes


def write_call(**changes):
    """Seven new tokens of 2 KV heads into blocks of 16."""
    return {
        **caches(9, 2, 16, 64),
        "k": rows_of_product(7, 2, 64),
        "v": rows_of_product(7, 2, 64),
        "slot_mapping": int64(7),
    } | changes


def write_extents_call(**changes):
    """Seven new tokens of 20 KV heads into a pool of 160 slots, each head by its own row."""
    return {
        **caches(160, 20, 64),
        "k": rows_of_product(7, 20, 64),
        "v": rows_of_product(7, 20, 64),
        "slot_mapping": int64(7, 20),
    } | changes


def copy_call(**changes):
    """Three blocks of 2 x 16 x 64 values, copied in a pool of 4 planes of 9 blocks."""
    return {"pool": FakeArray(4, 9, 2, 16, 64), "pairs": int32(3, 2)} | changes


def stage_call(**changes):
    """Three blocks of the same pool, gathered for the host."""
    return {
        "pool": FakeArray(4, 9, 2, 16, 64),
        "staging": FakeArray(5, 4, 2, 16, 64),
        "ids": int32(3),
        "to_host": True,
    } | changes


def norm_call(num_tokens=7, hidden=512, vectors=("gain", "shift", "carried"), **changes):
    """LayerNorm of the sum of the residual stream and a carried bias."""
    return {
        "y": FakeArray(num_tokens, hidden),
        "x": FakeArray(num_tokens, hidden),
        **{name: FakeArray(hidden) for name in vectors},
        "eps": 1e-5,
    } | changes


def rotate_call(**changes):
    """RoPE of seven tokens of 8 heads and 2 KV heads."""
    return {
        "q": rows_of_product(7, 8, 64),
        "k": rows_of_product(7, 2, 64),
        "positions": int64(7),
        "turns": float32(99, 2, 32),
    } | changes


def silu_call(**changes):
    """Seven tokens through a feed-forward layer of 5,008 channels."""
    return {"y": FakeArray(7, 5008), "x": FakeArray(7, 10016)} | changes


def prefix_call(num_seqs=128, num_heads=32, num_kv_heads=8, head_size=128, **changes):
    """Decodes in blocks of 16, in at most two runs that begin alike."""
    return {
        "q": rows_of_product(num_seqs, num_heads, head_size),
        **caches(4000, num_kv_heads, 16, head_size),
        "places": int32(num_seqs, 70),
        "runs": int32(3),
        "prefixes": int32(num_seqs),
        "max_run": num_seqs,
    } | changes
