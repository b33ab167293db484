"""Every wrapper names the argument that it refuses, before anything touches a GPU."""

import sys
import tomllib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kept import GOLDEN
from refusals import refuses

pytest.importorskip("torch", reason="torch is not installed")

from testbed.kernels.engine import maths
from testbed.kernels.launch import attention, cache_ops, compile, prefill_attention
from testbed.kernels.launch.attention import Workspace, decode
from testbed.kernels.launch.cache_ops import runs, swap_fused
from testbed.kernels.launch.compile import KernelsUnavailable
from testbed.kernels.launch.decode_plan import DecodePlan


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
        dense = np.cumprod([1, *self.shape[:0:-1]])[::-1].tolist()
        self.strides = tuple(
            stride * self.dtype.itemsize for stride in self.element_strides or dense
        )
        self.data = SimpleNamespace(ptr=self.pointer)

    def __getitem__(self, rows: slice) -> "FakeArray":
        start, stop, _ = rows.indices(self.shape[0])
        return FakeArray(
            (stop - start,), self.dtype, pointer=self.pointer + start * self.dtype.itemsize
        )


WRAPPERS = vars(attention) | vars(cache_ops) | vars(prefill_attention) | vars(maths)
CALLS = tomllib.loads((GOLDEN / "kernels" / "calls.toml").read_text())
REFUSALS = tomllib.loads((GOLDEN / "kernels" / "refusals.toml").read_text())["refusals"]
TYPES = {"float16", "float32", "uint8", "int32", "int64"}
BASE = 0x7F12 << 32  # an address such as allocators give


def made(*calls: dict[str, Any]) -> dict[str, Any]:
    """The arguments that a call says, and those that later ones replace."""
    shapes = {
        name: (kind, shape)
        for call in calls
        for kind in TYPES & call.keys()
        for name, shape in call[kind].items()
    }
    options = {name: value for call in calls for name, value in call.items()}
    strides, addresses = (options.pop(name, {}) for name in ("strides", "addresses"))
    for i, (name, (kind, shape)) in enumerate(sorted(shapes.items())):
        wide = (
            (384 * shape[1], *shape[2:], 1) if name in ("q", "k", "v") and len(shape) == 3 else None
        )  # of a product
        options[name] = FakeArray(
            tuple(shape), kind, strides.get(name, wide), addresses.get(name, BASE + (i << 12))
        )
    return {
        name: value
        for name, value in options.items()
        if name not in {*TYPES, "wrapper", "call", "error"}
    }


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda one: one["error"])
def test_arguments_are_refused_by_name(
    refusal: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "compute_capability", lambda: 90)
    base = CALLS[refusal["call"]]
    message = refuses(
        refusal["error"],
        WRAPPERS[base["wrapper"]],
        **made(base, refusal),
        error=(ValueError, TypeError),
    )
    assert message.startswith(refusal["error"].partition(":")[0])


@pytest.mark.parametrize("value", [[1, 2], np.zeros((2, 8, 64), np.float16)])
def test_arrays_of_others_are_refused(value: Any) -> None:
    kind = type(value).__name__
    refuses(
        f"q: expected a torch or CuPy array, got {kind}",
        decode,
        **made(CALLS["decode"]) | {"q": value},
        error=TypeError,
    )


def test_plans_and_workspaces_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "multiprocessors", lambda: 3)
    for call, plan, message in (
        ({}, DecodePlan(4, 1, 16), "workspace: has 47 partial rows, the launch needs 48"),
        ({}, DecodePlan(8, 1, 64, wave=True), "plan: 2 sequences, a wave has at most 1"),
        (
            {"max_context_len": 2049, "int32": {"places": [2, 129]}},
            DecodePlan(4, 1, 16),
            "plan: 129 chunks of 16 tokens, at most 128",
        ),
    ):
        arguments = made(CALLS["decode"], call) | {
            "workspace": Workspace(np.zeros((47, 64)), 0, 0),
            "plan": plan,
        }
        refuses(message, attention.bind_decode, **arguments, error=ValueError)
    pool, host, staging = (FakeArray((n, 4, 2, 16, 64)) for n in (4, 9, 3))
    refuses(
        "host_pool",
        swap_fused,
        pool,
        host,
        FakeArray((3,), "int32"),
        [(0, 0)],
        staging,
        True,
        error=ValueError,
    )


def test_missing_cupy_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    refuses("CuPy is missing", decode, **made(CALLS["decode"]), error=KernelsUnavailable)


def test_missing_gpu_is_reported_in_one_line() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        refuses("no NVIDIA driver or GPU is usable", compile.require_gpu, error=KernelsUnavailable)
    else:
        pytest.skip("this machine has a GPU")


def test_adjacent_block_ids_are_merged_into_runs() -> None:
    assert runs([3, 4, 5, 9, 2, 3]) == [(0, 3, 3), (3, 9, 1), (4, 2, 2)]
    assert runs([]) == []
