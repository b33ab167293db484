"""Launches without a GPU: arguments as the driver reads them, how decode is cut, which prefill kernel can run."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.kernels.launch import launch as module
from testbed.kernels.launch import prefill_attention
from testbed.kernels.launch.attention import ENDLESS, Shapes
from testbed.kernels.launch.decode_plan import CTAS_PER_SM, MAX_CHUNKS, MAX_WAVE, TILE, plan_decode
from testbed.kernels.launch.launch import Launch, packed
from testbed.kernels.launch.prefill_attention import BLOCK_SIZES, constants, evenly, fastest, origin_of, takes


def test_arguments_are_packed_in_8_byte_cells():
    cells = packed([1 << 40, 0, np.float32(1.5), np.int32(-3), np.int64(-(1 << 40))]).view(np.uint8).reshape(-1, 8)
    kinds = (np.uint64, np.uint64, np.float32, np.int32, np.int64)
    assert [cell.view(kind)[0] for cell, kind in zip(cells, kinds, strict=True)] == [1 << 40, 0, 1.5, -3, -(1 << 40)]
    with pytest.raises(OverflowError):
        packed([-1])


def test_launch_passes_argument_addresses_to_the_driver(monkeypatch):
    seen = []

    def driver(function, *rest):
        *shape, stream, arguments, extra = rest
        addresses = (ctypes.c_uint64 * 3).from_address(arguments)
        pointers = [ctypes.c_uint64.from_address(at).value for at in addresses[:2]]
        seen.append((function, shape, stream, pointers, ctypes.c_int32.from_address(addresses[2]).value, extra))

    fake = SimpleNamespace(cuda=SimpleNamespace(driver=SimpleNamespace(launchKernel=driver)))
    monkeypatch.setattr(module, "require_gpu", lambda: fake)
    bound = Launch(SimpleNamespace(kernel=SimpleNamespace(ptr=77)), (5, 2), 128, (11, 22, np.int32(-4)), 1024)
    bound(900)
    bound.point(1, 33)
    bound(901)
    shape = [5, 2, 1, 128, 1, 1, 1024]
    assert seen == [(77, shape, 900, [11, 22], -4, 0), (77, shape, 901, [11, 33], -4, 0)]


def test_immediate_launch_uses_the_stream_of_its_output(monkeypatch):
    seen = []

    class Bound:
        def __init__(self, threads):
            self.threads = threads

        def __call__(self, stream):
            seen.append(stream)

    launch = module.at_once(lambda out, q, threads: Bound(threads))
    monkeypatch.setattr(module, "stream_pointer", lambda array: f"stream of {array}")
    launch("out", "q", 128)
    launch(q="q", out="another", threads=128)
    launch("out", "q", 0)  # nobody's grid
    assert seen == ["stream of out", "stream of another"]


@given(
    st.integers(1, 2_000),
    st.integers(1, 64),
    st.sampled_from(sorted(CTAS_PER_SM)),
    st.integers(1, 131_072),
    st.sampled_from([78, 108, 132]),
    st.booleans(),
    st.sampled_from([0, 1, 100, 1024, 4096]),
)
def test_every_decode_plan_is_valid(
    num_seqs: int, groups: int, head_size: int, longest: int, num_sms: int, fp8: bool, window: int
) -> None:
    plan = plan_decode(num_seqs, groups, head_size, longest, num_sms, fp8, window)
    assert (plan.chunk_tokens - (TILE if window else 0)) % (TILE * plan.num_warps) == 0
    assert 1 <= plan.num_chunks(plan.most_read(longest, window)) <= MAX_CHUNKS
    assert plan.num_warps in (2, 4, 8)
    assert plan.ctas_per_sm >= 1
    if plan.wave:
        assert num_seqs <= min(MAX_WAVE, num_sms * plan.ctas_per_sm // groups)


def test_windows_are_split_as_contexts_of_their_length() -> None:
    plan = plan_decode(32, 8, 128, 16_384, 132, window=1024)
    assert plan.most_read(16_384, 1024) == 1024 + TILE - 1  # a window may begin inside a tile
    assert plan.num_chunks(plan.most_read(16_384, 1024)) == plan_decode(32, 8, 128, 1024, 132).num_chunks(1024) == 1
    assert plan_decode(32, 8, 128, 4096, 132, fp8=True).chunk_tokens == 2048


def test_chunks_fill_the_gpu_only_where_heads_do_not() -> None:
    assert plan_decode(32, 40, 128, 1024, 132).num_chunks(1024) == 1
    assert plan_decode(8, 40, 128, 64, 132).num_chunks(64) == 1
    plan = plan_decode(1, 40, 128, 16_384, 132)
    assert 0.8 * 132 * plan.ctas_per_sm <= 40 * plan.num_chunks(16_384) <= 132 * plan.ctas_per_sm


def test_two_chunks_run_in_one_wave_when_worthwhile() -> None:
    assert plan_decode(8, 8, 128, 8192, 132).wave
    assert not plan_decode(8, 8, 128, 1024, 132).wave  # short contexts: finding the chunks takes longer than it saves
    assert not plan_decode(6, 8, 128, 8192, 132).wave  # 96 of 132 would run
    assert not plan_decode(64, 1, 128, 8192, 132).wave  # more sequences than lanes


BASE = 0x7F12 << 32  # an address such as allocators give


def shapes(head_size: int = 128, block_size: int = 16, scales: int = 0, window: int = 0) -> Shapes:
    return Shapes(100, 8, 2, head_size, 32000, block_size, 8 * head_size, 0, scales, window)


@pytest.mark.parametrize(
    ("head_size", "block_size", "pack", "window"),
    [(128, 16, True, 0), (64, 8, True, 9), (128, ENDLESS, False, 0), (64, 1, False, 0)],
)
def test_kernel_compiles_without_spills_or_serialized_wgmma(head_size, block_size, pack, window) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from ptxas import resources

    defines = shapes(head_size, block_size, window=window).defines | constants(4, block_size, pack)
    (found,) = resources("prefill_tma.cu", defines, "sm_90a")
    assert (found.spill_bytes, found.notes) == (0, "")


def test_query_heads_are_packed_in_powers_of_two() -> None:
    assert [prefill_attention.packed(group, True) for group in (1, 2, 4, 7, 8, 16)] == [1, 2, 4, 1, 8, 1]
    assert prefill_attention.packed(4, False) == 1


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
    assert {fastest(shapes(block_size=size), caches) for size in (*BLOCK_SIZES, ENDLESS)} == {"tma"}
    assert {fastest(shapes(block_size=size), caches) for size in (3, 24)} == {"mma"}
    assert fastest(shapes(window=64), caches) == "tma"
    assert fastest(shapes(scales=BASE), caches) == fastest(shapes(80), caches) == "mma"
    monkeypatch.setattr(prefill_attention, "has_wgmma", lambda head_size: False)
    assert fastest(shapes(), caches) == "mma"
