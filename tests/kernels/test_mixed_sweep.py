"""What the sweep of mixed batches does without a GPU."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from kernels.measure.mixed_batches import MAX_TOKENS, decode_grid, together


def test_the_shorter_list_of_layers_starts_over() -> None:
    done: list[str] = []
    prefill = [lambda i=i: done.append(f"prompt {i}") for i in range(2)]
    decode = [lambda i=i: done.append(f"decode {i}") for i in range(3)]
    for call in together(prefill, decode):
        call()
    assert done == ["prompt 0", "decode 0", "prompt 1", "decode 1", "prompt 0", "decode 2"]


def test_batches_stay_within_the_model_and_the_pool() -> None:
    grid = decode_grid(1024)
    assert max(mean for _, mean in grid) < 1024
    assert all(n * mean <= MAX_TOKENS for n, mean in decode_grid(16_384))
