"""Launches of ragged prefill: which kernel runs, its grid, and every argument by name."""

import math

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from fake_gpu import FIRST_ADDRESS, NUM_SMS, int32, launched, place_apart
from kernel_calls import caches, e4m3_prefill_call, prefill_call

from testbed.kernels.launch import decode_plan, prefill_attention
from testbed.kernels.launch.attention import ENDLESS, Shapes
from testbed.kernels.launch.prefill_attention import (
    BLOCK_SIZES,
    bind_prefill,
    constants,
    evenly,
    fastest,
    origin_of,
    takes,
)

LOG2_E = math.log2(math.e)


def test_prefill_of_blocks_on_hopper(gpu):
    launch, addresses = launched(gpu, bind_prefill, prefill_call())
    assert (launch.source, launch.kernel) == ("prefill_tma.cu", "prefill")
    assert launch.defines == {
        "HEAD_SIZE": 128,
        "GROUP": 4,  # 32 heads read 8 KV heads
        "BF16": 0,
        "PAGED": 1,
        "BLOCK_SIZE": 16,
        "FP8": 0,
        "WINDOWED": 0,
        "BOX_ROWS": 16,
        "SHORT": 0,  # prompts of more than 256 tokens
        "PACK": 0,
        "PREFIX": 0,
    }
    assert launch.grid == (NUM_SMS,)  # 3 x 96 items for as many thread blocks as run at once
    assert launch.threads == 384
    # Tiles of 128 rows of 128 fp16 values: six stages of Q, K and V, the output; barriers.
    assert launch.shared_bytes == 7 * 128 * 128 * 2 + 192
    arguments = launch.arguments
    for name, address in addresses.items():
        assert arguments[name] == address, name
    assert arguments["rows"] == 128  # the map of memory
    assert arguments["origin"] == origin_of([addresses["k_cache"], addresses["v_cache"]])
    assert arguments["counter"] == 64
    assert arguments["scale_log2"] == pytest.approx(128**-0.5 * LOG2_E)
    assert arguments["q_stride"] == 384 * 32
    assert (arguments["num_kv_heads"], arguments["places_width"]) == (8, 70)
    assert arguments["num_seqs"] == 3
    assert arguments["num_tiles"] == 3  # 300 tokens in tiles of 128
    assert arguments["group"] == 3 * 32  # the K and V of all heads fit the L2 cache
    assert arguments["window"] == 0


@pytest.mark.parametrize(
    ("max_query_len", "short", "num_tiles", "group"),
    [
        (256, 1, 8, 24),  # 4 heads of 256 tokens are 1,024 rows; 24 KV heads of sequences
        (257, 0, 3, 96),
    ],
)
def test_heads_of_short_prompts_share_thread_blocks(gpu, max_query_len, short, num_tiles, group):
    launch, _ = launched(gpu, bind_prefill, prefill_call(max_query_len=max_query_len, window=50))
    assert (launch.defines["SHORT"], launch.defines["PACK"]) == (short, short)
    assert launch.defines["WINDOWED"] == 1
    assert launch.arguments["num_tiles"] == num_tiles
    assert launch.arguments["group"] == group
    assert launch.arguments["window"] == 50


def test_a_small_grid_has_a_thread_block_for_each_item(gpu):
    call = prefill_call(257, 32, 128, 1, max_query_len=257)
    launch, _ = launched(gpu, bind_prefill, call)
    assert launch.grid == (3 * 32,)  # tiles of a prompt, heads


def test_long_prompts_are_worked_off_in_groups_that_fit_the_l2_cache(gpu):
    """4,800 slots of K and V take 307,200 bytes a head, of which 24 MiB hold 81: 72 are even."""
    call = prefill_call(5000, 24, 64, 9, places=int32(9, 300), max_query_len=4100)
    launch, _ = launched(gpu, bind_prefill, call)
    assert launch.arguments["num_tiles"] == 33
    assert launch.arguments["group"] == 72  # a third of 9 x 24
    assert launch.shared_bytes == 7 * 128 * 64 * 2 + 192


def test_kind_and_variant_for_short_prompts_can_be_chosen(gpu):
    call = prefill_call(900, 16, 128, kind="tma", short=True, scale=0.25)
    call |= caches(4000, 2, 256, 128) | {"places": int32(3, 9)}
    launch, _ = launched(gpu, bind_prefill, call)
    assert (launch.defines["PACK"], launch.defines["GROUP"]) == (1, 8)
    assert launch.defines["BOX_ROWS"] == 128  # a box of a block, at most a tile
    assert launch.grid == (19 * 6,)  # 8 heads of 300 tokens in tiles of 128; KV heads of 3 prompts
    assert launch.arguments["group"] == 6
    assert launch.arguments["scale_log2"] == pytest.approx(0.25 * LOG2_E)


def test_prefill_of_extents_copies_32_rows_at_once(gpu):
    call = prefill_call(270, 32, 64, **caches(9000, 8, 64), places=int32(3, 2), max_query_len=90)
    launch, _ = launched(gpu, bind_prefill, call)
    assert (launch.defines["PAGED"], launch.defines["BLOCK_SIZE"]) == (0, ENDLESS)
    assert launch.defines["BOX_ROWS"] == 32
    assert launch.arguments["places_width"] == 2
    assert launch.grid == (3 * 24,)  # 4 heads of 90 tokens in 3 tiles; KV heads of 3 prompts


def test_prefill_without_tensor_memory_accesses(gpu):
    launch, addresses = launched(gpu, bind_prefill, prefill_call(kind="mma", window=9))
    assert (launch.source, launch.kernel) == ("prefill.cu", "prefill")
    assert "PACK" not in launch.defines
    assert launch.defines["WINDOWED"] == 1
    assert launch.grid == (3, 32, 3)  # tiles of 128 of 300 tokens, heads, sequences
    assert launch.threads == 128
    # 128 rows of Q and twice 64 of K and of V, each padded by 8 values of 2 bytes.
    assert launch.shared_bytes == (128 + 4 * 64) * (128 + 8) * 2
    arguments = launch.arguments
    for name, address in addresses.items():
        assert arguments[name] == address, name
    assert arguments["scale_log2"] == pytest.approx(128**-0.5 * LOG2_E)
    assert arguments["q_stride"] == 384 * 32
    assert (arguments["num_kv_heads"], arguments["places_width"]) == (8, 70)
    assert (arguments["kv_scales"], arguments["window"]) == (0, 9)


def test_wide_heads_have_tiles_of_half_as_many_tokens(gpu):
    launch, _ = launched(gpu, bind_prefill, prefill_call(900, 32, 256))
    assert launch.source == "prefill.cu"
    assert launch.grid == (5, 32, 3)  # tiles of 64 of 300 tokens
    assert launch.shared_bytes == (64 + 4 * 64) * (256 + 8) * 2


def test_one_byte_values_are_staged_as_bytes(gpu):
    launch, addresses = launched(gpu, bind_prefill, e4m3_prefill_call())
    assert launch.source == "prefill.cu"
    assert launch.defines["FP8"] == 1
    # Q and one stage of K and V as 16-bit values, and the 64 rows of each as bytes.
    assert launch.shared_bytes == (128 + 2 * 64) * (64 + 8) * 2 + 2 * 64 * 64
    assert launch.arguments["kv_scales"] == addresses["kv_scales"]


@pytest.mark.parametrize("between_rows", ["k_cache", "v_cache"])
def test_caches_between_rows_of_the_map_take_the_other_kernel(gpu, between_rows):
    call = prefill_call(90, 8, 64, max_query_len=40)
    place_apart(call)
    call[between_rows].data.ptr += 16  # aligned, but no whole row of 128 bytes
    bind_prefill(**call)
    (launch,) = gpu.launches
    assert launch.source == "prefill.cu"


def test_caches_far_apart_have_one_map(gpu):
    call = prefill_call()
    place_apart(call)
    call["v_cache"].data.ptr += 1 << 36
    bind_prefill(**call)
    (launch,) = gpu.launches
    assert launch.source == "prefill_tma.cu"
    assert launch.arguments["v_cache"] - launch.arguments["k_cache"] > 1 << 36


@pytest.mark.parametrize("farther", ["k_cache", "v_cache"])
def test_caches_too_far_apart_for_one_map_take_the_other_kernel(gpu, farther):
    """An allocator that maps new memory put K and V 140 TB apart."""
    call = prefill_call()
    place_apart(call)
    call[farther].data.ptr += 140 * 10**12 // 512 * 512
    bind_prefill(**call)
    (launch,) = gpu.launches
    assert launch.source == "prefill.cu"
    with pytest.raises(ValueError, match=r"kind=tma: .* \d{15} bytes apart"):
        bind_prefill(**call, kind="tma")


def shapes(head_size=128, block_size=16, scales=0, window=0):
    """A batch of 100 rows of 8 heads over 2 KV heads, caches of 32,000 rows."""
    return Shapes(
        num_rows=100,
        num_heads=8,
        num_kv_heads=2,
        head_size=head_size,
        cache_rows=32_000,
        block_size=block_size,
        q_stride=8 * head_size,
        bf16=0,
        kv_scales=scales,
        window=window,
    )


@pytest.mark.parametrize(
    ("head_size", "block_size", "pack", "window"),
    [(128, 16, True, 0), (64, 8, True, 9), (128, ENDLESS, False, 0), (64, 1, False, 0)],
)
def test_kernel_compiles_without_spills_or_serialized_wgmma(head_size, block_size, pack, window):
    from ptxas import resources

    defines = shapes(head_size, block_size, window=window).defines | constants(4, block_size, pack)
    (used,) = resources("prefill_tma.cu", defines, "sm_90a")
    assert (used.spill_bytes, used.notes) == (0, "")


@pytest.mark.parametrize(
    ("heads_per_kv_head", "packed"), [(1, 1), (2, 2), (4, 4), (7, 1), (8, 8), (16, 1)]
)
def test_query_heads_are_packed_in_powers_of_two(heads_per_kv_head, packed):
    assert decode_plan.packed(heads_per_kv_head) == packed


@pytest.mark.parametrize(
    ("pairs", "most", "size"),
    [
        (40, 12, 10),
        (160, 48, 40),
        (7, 8, 7),
        (640, 305, 214),
        (9, 8, 5),
        (1, 8, 1),
        (40, 3, 2),
        (41, 3, 3),
    ],
)
def test_work_groups_have_even_bounded_sizes(pairs, most, size):
    assert evenly(pairs, most) == size


def test_caches_must_fit_one_tensor_map():
    base = FIRST_ADDRESS
    near, far_below = [base, base + (1 << 33)], [base, base - (1 << 37)]
    first = origin_of(near)
    last = first + ((1 << 31) - 1 - shapes().cache_rows) * 256
    assert base - (1 << 37) < first <= base - (1 << 36)
    assert origin_of([1 << 20, 1 << 21]) == 0
    assert origin_of(far_below) == first - (1 << 37)
    assert takes(shapes(), near)
    assert takes(shapes(64), near)
    assert takes(shapes(), far_below)
    assert takes(shapes(), [base, last])
    assert not takes(shapes(), [base, last + 256])
    assert not takes(shapes(), [base, base + 128])
    assert takes(shapes(64), [base, base + 128])
    assert not takes(shapes(80), near)


def test_fastest_usable_kernel_is_chosen(monkeypatch):
    addresses = [FIRST_ADDRESS, FIRST_ADDRESS + (1 << 30)]
    monkeypatch.setattr(prefill_attention, "has_wgmma", lambda head_size: head_size in (64, 128))
    for size in (*BLOCK_SIZES, ENDLESS):
        assert fastest(shapes(block_size=size), addresses) == "tma", size
    for size in (3, 24):
        assert fastest(shapes(block_size=size), addresses) == "mma", size
    assert fastest(shapes(window=64), addresses) == "tma"
    assert fastest(shapes(scales=FIRST_ADDRESS), addresses) == "mma"
    assert fastest(shapes(80), addresses) == "mma"
    monkeypatch.setattr(prefill_attention, "has_wgmma", lambda head_size: False)
    assert fastest(shapes(), addresses) == "mma"


def test_warpgroup_products_need_hopper(monkeypatch):
    for capability, expected in ((90, True), (80, False), (100, False)):
        monkeypatch.setattr(prefill_attention, "compute_capability", lambda value=capability: value)
        assert prefill_attention.has_wgmma(128) == expected
        assert not prefill_attention.has_wgmma(80)
