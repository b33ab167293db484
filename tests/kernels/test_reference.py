"""The references agree with torch and with each other: paged, whole prompts and chunks."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from testbed.kernels.verify import reference  # noqa: E402


@pytest.fixture
def rng() -> np.random.Generator:
    torch.manual_seed(0)
    return np.random.default_rng(0)


def cache_of(
    rows: "torch.Tensor", block_size: int, order: np.ndarray
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Rows [tokens, heads, size] in shuffled blocks, the rest NaN, and the block table."""
    cache = torch.full(
        (len(order), rows.shape[1], block_size, rows.shape[2]), torch.nan, dtype=rows.dtype
    )
    mapping = [
        int(order[i // block_size]) * block_size + i % block_size for i in range(rows.shape[0])
    ]
    reference.write_cache(cache, rows, mapping)
    return cache, torch.from_numpy(order)


def test_full_attention_equals_torch(rng: np.random.Generator) -> None:
    q, k, v = (torch.randn(20, heads, 16, dtype=torch.float64) for heads in (6, 2, 2))
    args = [
        x.transpose(0, 1)[None] for x in (q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1))
    ]
    expected = torch.nn.functional.scaled_dot_product_attention(*args, is_causal=True)[0].transpose(
        0, 1
    )
    assert torch.allclose(reference.full_attention(q, k, v), expected, atol=1e-12)


@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_paged_decode_equals_full_attention(rng: np.random.Generator, block_size: int) -> None:
    k, v = (torch.randn(37, 2, 8, dtype=torch.float64) for _ in range(2))
    order = rng.permutation(-(-37 // block_size) + 2)
    (k_cache, table), (v_cache, _) = cache_of(k, block_size, order), cache_of(v, block_size, order)
    q = torch.randn(2, 4, 8, dtype=torch.float64)
    output = reference.paged_prefill(
        q, k_cache, v_cache, torch.stack([table, table]), [1, 1], [37, 0]
    )
    assert torch.allclose(output[0], reference.full_attention(q[:1], k, v)[0], atol=1e-12)
    assert (output[1] == 0).all()


def test_chunked_prefill_equals_whole_prompt(rng: np.random.Generator) -> None:
    q, k, v = (torch.randn(33, heads, 8, dtype=torch.float64) for heads in (4, 2, 2))
    order = rng.permutation(4)
    (k_cache, table), (v_cache, _) = cache_of(k, 16, order), cache_of(v, 16, order)
    whole = reference.paged_prefill(q, k_cache, v_cache, table[None], [33], [33])
    assert torch.allclose(whole, reference.full_attention(q, k, v), atol=1e-12)
    parts = [
        reference.paged_prefill(q[a:b], k_cache, v_cache, table[None], [b - a], [b])
        for a, b in ((0, 20), (20, 33))
    ]
    assert torch.allclose(torch.cat(parts), whole, atol=1e-12)


def test_windows_hide_all_tokens_before(rng: np.random.Generator) -> None:
    q, k, v = (torch.randn(20, 2, 8, dtype=torch.float64) for _ in range(3))
    output = reference.full_attention(q, k, v, window=5)
    for i in (0, 4, 5, 19):
        low = max(0, i - 4)
        assert torch.allclose(
            output[i], reference.full_attention(q[i : i + 1], k[low : i + 1], v[low : i + 1])[0]
        )


def test_e4m3_rounds_to_the_nearest_and_saturates() -> None:
    x, scale = (
        torch.tensor([[[1.0, 1.06, 0.0, -500.0], [3.0, 0.5, -0.5, 1e-9]]]),
        torch.tensor([1.0, 0.5]),
    )
    stored = reference.quantized(x, scale)
    assert stored.dtype == torch.uint8
    assert reference.dequantized(stored, scale)[0, 0].tolist() == [1.0, 1.0, 0.0, -448.0]
    assert reference.dequantized(stored, scale)[0, 1].tolist() == [3.0, 0.5, -0.5, 0.0]


def test_layout_of_the_paper_is_a_permutation() -> None:
    cache = torch.randn(3, 2, 16, 64)
    keys, values = reference.paper_layout(cache, cache)
    assert (keys.shape, values.shape) == ((3, 2, 8, 16, 8), (3, 2, 64, 16))
    assert torch.equal(keys[1, 0, 5, 9], cache[1, 0, 9, 40:48])
    assert torch.equal(values[1, 0, :, 9], cache[1, 0, 9])


def test_nan_gives_an_infinite_error() -> None:
    expected = torch.ones(2, 3, dtype=torch.float64)
    output = expected.clone()
    output[0, 1] = torch.nan
    assert reference.relative_error(output, expected) == float("inf")
    assert reference.relative_error(expected * 1.5, expected) == pytest.approx(0.5)


@pytest.mark.parametrize("head_size", [64, 80])
def test_keys_and_values_of_a_batch_are_one_allocation(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, head_size: int
) -> None:
    monkeypatch.setattr(reference, "DEVICE", "cpu")
    batch = reference.random_batch(rng, reference.Shape(4, 2, head_size), [40, 7])
    for k, v in ((batch.k_cache, batch.v_cache), reference.to_extents(batch)[:2]):
        assert v.data_ptr() == k.data_ptr() + k.nbytes
        assert not torch.equal(k[~k.isnan()], v[~v.isnan()])
