"""The prefill kernel with roles, without a GPU: it compiles as meant, and it is chosen only where it can run."""

import pytest

from testbed.kernels.launch import prefill_attention
from testbed.kernels.launch.attention import Shapes, cache_defines
from testbed.kernels.launch.prefill_attention import BLOCK_SIZES, constants, evenly, fastest, origin_of, packed, takes

BASE = 0x7F12 << 32  # an address such as allocators give


def shapes(head_size: int = 128, block_size: int = 16, scales: int = 0, window: int = 0) -> Shapes:
    return Shapes(100, 8, 2, head_size, 1000, block_size, 8 * head_size, False, scales, window)


@pytest.mark.parametrize(
    ("head_size", "block_size", "bf16", "pack", "windowed"),
    [(128, 16, 0, True, False), (64, 8, 1, True, True), (128, 256, 1, False, False)],
)
def test_kernel_compiles_without_spills_or_serialized_wgmma(head_size, block_size, bf16, pack, windowed) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from ptxas import resources

    defines = {"HEAD_SIZE": head_size, "GROUP": 4, "BF16": bf16, **cache_defines(False, windowed)}
    (found,) = resources("prefill_tma.cu", {**defines, **constants(4, block_size, pack)}, "sm_90a")
    assert (found.spill_bytes, found.notes) == (0, "")


def test_query_heads_are_packed_in_powers_of_two() -> None:
    assert [packed(group, True) for group in (1, 2, 4, 7, 8, 16)] == [1, 2, 4, 1, 8, 1]
    assert packed(4, False) == 1


@pytest.mark.parametrize(
    ("pairs", "most", "size"),
    [(40, 12, 10), (160, 48, 40), (7, 8, 7), (640, 305, 214), (9, 8, 5), (1, 8, 1), (40, 3, 2), (41, 3, 3)],
)
def test_work_groups_have_even_bounded_sizes(pairs: int, most: int, size: int) -> None:
    assert evenly(pairs, most) == size


def test_caches_must_fit_one_tensor_map() -> None:
    near, far = [BASE, BASE + (1 << 33)], [BASE, BASE + (1 << 40)]
    assert origin_of(BASE) <= BASE - (1 << 36)
    assert takes(shapes(), near)
    assert takes(shapes(64), near)
    assert not takes(shapes(), far)
    assert not takes(shapes(), [BASE, origin_of(BASE) - 256])
    assert not takes(shapes(), [BASE, BASE + 128])
    assert takes(shapes(64), [BASE, BASE + 128])
    assert not takes(shapes(80), near)


def test_fastest_usable_kernel_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = [BASE, BASE + (1 << 30)]
    monkeypatch.setattr(prefill_attention, "has_wgmma", lambda head_size: head_size in (64, 128))
    assert {fastest(shapes(block_size=size), caches, 4096) for size in BLOCK_SIZES} == {"tma"}
    assert {fastest(shapes(block_size=size), caches, 4096) for size in (1, 2, 3, 4, 24)} == {"wgmma"}
    assert fastest(shapes(block_size=1), caches, 100) == fastest(shapes(block_size=1, window=64), caches, 4096) == "mma"
    assert fastest(shapes(window=64), caches, 4096) == "tma"
    assert fastest(shapes(scales=BASE), caches, 4096) == fastest(shapes(80), caches, 4096) == "mma"
    monkeypatch.setattr(prefill_attention, "has_wgmma", lambda head_size: False)
    assert fastest(shapes(), caches, 4096) == "mma"
