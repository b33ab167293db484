"""Every wrapper names the argument that it refuses, before anything touches a GPU."""

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from refusals import refuses

from testbed.kernels.launch import compile
from testbed.kernels.launch.attention import decode, paper_decode
from testbed.kernels.launch.cache_ops import (
    copies_of_runs,
    copy_blocks,
    runs,
    stage_blocks,
    swap_fused,
    write_cache,
)
from testbed.kernels.launch.compile import KernelsUnavailable
from testbed.kernels.launch.prefill_attention import prefill


@dataclass
class FakeArray:
    """Shape, strides, type and address, as a CuPy array on a GPU shows them."""

    shape: tuple[int, ...]
    dtype: Any = "float16"
    element_strides: tuple[int, ...] | None = None
    pointer: int = 1 << 20
    data: Any = field(init=False)
    strides: tuple[int, ...] = field(init=False)
    __cuda_array_interface__: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.dtype = np.dtype(self.dtype)
        dense, strides = 1, []
        for size in reversed(self.shape):
            strides.append(dense)
            dense *= size
        chosen = self.element_strides or tuple(reversed(strides))
        self.strides = tuple(stride * self.dtype.itemsize for stride in chosen)
        self.data = SimpleNamespace(ptr=self.pointer)


def decode_arguments(**changed: Any) -> dict[str, Any]:
    """Valid arguments of decode: 2 sequences, 8 heads over 2 kv heads of 64, 5 blocks of 16."""
    arguments = {
        "out": FakeArray((2, 8, 64)),
        "q": FakeArray((2, 8, 64)),
        "k_cache": FakeArray((5, 2, 16, 64)),
        "v_cache": FakeArray((5, 2, 16, 64)),
        "places": FakeArray((2, 3), "int32"),
        "context_lens": FakeArray((2,), "int32"),
        "max_context_len": 40,
    }
    return arguments | changed


PAPER = {"k_cache": FakeArray((5, 2, 8, 16, 8)), "v_cache": FakeArray((5, 2, 64, 16))}
WRONG_DECODE = [
    ("q", FakeArray((2, 8)), "expected shape"),
    ("q", FakeArray((2, 8, 64), "float32"), "expected float16 or bfloat16"),
    ("q", FakeArray((2, 8, 72)), "head size 72"),
    ("q", FakeArray((2, 7, 64)), "shape"),
    ("q", FakeArray((2, 8, 64), pointer=8), "multiples of 16 bytes"),
    ("q", FakeArray((2, 8, 64), element_strides=(513, 64, 1)), "multiples of 16 bytes"),
    ("q", FakeArray((2, 8, 64), element_strides=(1024, 128, 1)), "dimension 1 has stride 128"),
    ("out", FakeArray((2, 8, 64), "float32"), "expected float16"),
    ("out", FakeArray((3, 8, 64)), "expected shape"),
    ("k_cache", FakeArray((5, 2, 16, 128)), "expected shape"),
    ("k_cache", FakeArray((5, 3, 16, 64)), "expected shape"),
    ("k_cache", FakeArray((5, 2, 16, 64), "float32"), "expected float16"),
    ("v_cache", FakeArray((4, 2, 16, 64)), "expected shape"),
    ("v_cache", FakeArray((5, 2, 16, 64), element_strides=(4096, 2048, 64, 2)), "stride"),
    ("places", FakeArray((2, 3), "int64"), "expected int32"),
    ("places", FakeArray((3, 3), "int32"), "expected shape"),
    ("places", FakeArray((2, 2), "int32"), "too few for 40 tokens"),
    ("context_lens", FakeArray((2, 1), "int32"), "expected shape"),
    ("context_lens", FakeArray((2,), "int64"), "expected int32"),
    ("q", [1, 2], "expected a torch or CuPy array"),
    ("q", np.zeros((2, 8, 64), np.float16), "expected a torch or CuPy array, got ndarray"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG_DECODE)
def test_decode_refuses_wrong_arguments_by_name(name: str, value: Any, message: str) -> None:
    reported = refuses(message, decode, **decode_arguments(**{name: value}), error=(ValueError, TypeError))
    expected = {"q" if "heads" in message else name, "out", "v_cache"}
    assert reported.split(":")[0].split("[")[0] in expected


def caches(*shape: int, **kind: Any) -> dict[str, Any]:
    return {name: FakeArray(shape, **kind) for name in ("k_cache", "v_cache")}


def scales(*shape: int) -> FakeArray:
    return FakeArray(shape, "float32")


def contiguous(shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    """Arguments of decode with these extents."""
    return {**caches(80, 2, 64), "places": FakeArray(shape, dtype)}


def prefill_arguments(num_starts: int, **changed: Any) -> dict[str, Any]:
    """Arguments of prefill for 9 tokens."""
    arguments = decode_arguments(q=FakeArray((9, 8, 64)), out=FakeArray((9, 8, 64)), **changed)
    del arguments["max_context_len"]
    return {**arguments, "query_starts": FakeArray((num_starts,), "int32")}


E4M3 = caches(5, 2, 16, 64, dtype="uint8")
NARROW = caches(5, 2, 16, 80, dtype="uint8") | {name: FakeArray((2, 8, 80)) for name in ("q", "out")}
PAPER_24 = {"k_cache": FakeArray((5, 2, 8, 24, 8)), "v_cache": FakeArray((5, 2, 64, 24))}
CALLS = [
    (decode, caches(5, 2, 512, 64), ValueError, "k_cache: block size: expected 1 to 256, got 512"),
    (decode, caches(1 << 26, 2, 16, 64), ValueError, "k_cache: 2147483648 rows"),
    (decode, E4M3, TypeError, "k_cache: expected float16, got uint8"),
    (decode, {"kv_scales": scales(2, 2)}, TypeError, "k_cache: expected float8_e4m3fn or uint8, got float16"),
    (decode, {**E4M3, "kv_scales": scales(2, 8)}, ValueError, r"kv_scales: expected shape \[2, 2\]"),
    (decode, {**NARROW, "kv_scales": scales(2, 2)}, ValueError, "no kernel of e4m3 for head size 80"),
    (decode, {"window": 0}, ValueError, "window: expected 1 to"),
    (decode, contiguous((2, 3), "int32"), ValueError, r"places: expected shape \[2, 2\]"),
    (decode, contiguous((2, 2), "int64"), TypeError, "places: expected int32"),
    (prefill, prefill_arguments(2, max_query_len=5), ValueError, r"query_starts: expected shape \[3\]"),
    (prefill, prefill_arguments(3, max_query_len=10), ValueError, "max_query_len: expected 1 to 9, got 10"),
    (paper_decode, {}, ValueError, "v_cache: expected shape"),
    (paper_decode, {"v_cache": FakeArray((5, 2, 64, 16))}, ValueError, "k_cache: expected shape"),
    (paper_decode, {**PAPER, "max_context_len": 100_000}, ValueError, "max_context_len"),
    (paper_decode, PAPER_24, ValueError, "power of two"),
]


@pytest.mark.parametrize(("kernel", "arguments", "error", "message"), CALLS)
def test_attention_refuses_what_it_does_not_support(kernel: Any, arguments: Any, error: Any, message: str) -> None:
    given = arguments if kernel is prefill else decode_arguments(**arguments)
    refuses(message, kernel, **given, error=error)


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        ({2: FakeArray((7, 3, 64))}, {}, "k: expected shape"),
        ({3: FakeArray((6, 2, 64))}, {}, "v: expected shape"),
        ({4: FakeArray((7,), "int32")}, {}, "slot_mapping: expected int64"),
        ({}, {"paper_layout": True}, "k_cache: expected shape"),
    ],
)
def test_cache_write_refuses_wrong_arguments_by_name(changed: dict[int, Any], options: Any, message: str) -> None:
    cache, new = FakeArray((5, 2, 16, 64)), FakeArray((7, 2, 64))
    arguments = dict(enumerate((cache, cache, new, new, FakeArray((7,), "int64")))) | changed
    refuses(message, write_cache, *arguments.values(), **options, error=(ValueError, TypeError))


def test_block_copies_refuse_wrong_arguments_by_name() -> None:
    pool, ids = FakeArray((4, 9, 2, 16, 64)), FakeArray((3,), "int32")
    refuses("pairs: expected shape", copy_blocks, pool, ids, error=ValueError)
    refuses("pool: expected shape", copy_blocks, FakeArray((4, 9, 2, 16)), FakeArray((3, 2), "int32"), error=ValueError)
    refuses("staging: has 2 blocks", stage_blocks, pool, FakeArray((2, 4, 2, 16, 64)), ids, True, error=ValueError)
    staging, host = FakeArray((3, 4, 2, 16, 64)), FakeArray((9, 4, 2, 16, 64))
    refuses("ids: expected int32", stage_blocks, pool, staging, FakeArray((3,), "int64"), False, error=TypeError)
    refuses("host_pool", swap_fused, pool, host, ids, [(0, 0)], staging, True, error=ValueError)


def test_missing_cupy_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    refuses("CuPy is missing", decode, **decode_arguments(), error=KernelsUnavailable)


def test_missing_gpu_is_reported_in_one_line() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        refuses("no NVIDIA driver or GPU is usable", compile.require_gpu, error=KernelsUnavailable)
    else:
        pytest.skip("this machine has a GPU")


def test_swaps_move_the_bytes_of_the_cache() -> None:
    for dtype, size in (("float16", 2), ("uint8", 1)):
        staging, host = (FakeArray((n, 4, 2, 16, 64), dtype, pointer=p) for n, p in ((3, 1 << 20), (9, 1 << 30)))
        piece = 4 * 2 * 16 * 64 * size
        copies = copies_of_runs(staging, host, [5, 6, 2], True)
        assert copies == [((1 << 30) + 5 * piece, 1 << 20, 2 * piece),
                          ((1 << 30) + 2 * piece, (1 << 20) + 2 * piece, piece)]  # fmt: skip


def test_adjacent_block_ids_are_merged_into_runs() -> None:
    assert runs([3, 4, 5, 9, 2, 3]) == [(0, 3, 3), (3, 9, 1), (4, 2, 2)]
    assert runs([]) == []
