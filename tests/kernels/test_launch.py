"""Common parts of launches: arguments in cells, what the driver gets, and the stream of a call."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from testbed.kernels.launch import launch as module
from testbed.kernels.launch.launch import Launch, packed


def test_arguments_are_packed_in_8_byte_cells():
    cells = (
        packed([1 << 40, 0, np.float32(1.5), np.int32(-3), np.int64(-(1 << 40))])
        .view(np.uint8)
        .reshape(-1, 8)
    )
    kinds = (np.uint64, np.uint64, np.float32, np.int32, np.int64)
    assert [cell.view(kind)[0] for cell, kind in zip(cells, kinds, strict=True)] == [
        1 << 40,
        0,
        1.5,
        -3,
        -(1 << 40),
    ]
    with pytest.raises(OverflowError):
        packed([-1])


def test_launch_passes_argument_addresses_to_the_driver(monkeypatch):
    seen = []

    def driver(function, *rest):
        *shape, stream, arguments, extra = rest
        addresses = (ctypes.c_uint64 * 3).from_address(arguments)
        pointers = [ctypes.c_uint64.from_address(at).value for at in addresses[:2]]
        seen.append(
            (
                function,
                shape,
                stream,
                pointers,
                ctypes.c_int32.from_address(addresses[2]).value,
                extra,
            )
        )

    fake = SimpleNamespace(cuda=SimpleNamespace(driver=SimpleNamespace(launchKernel=driver)))
    monkeypatch.setattr(module, "require_gpu", lambda: fake)
    bound = Launch(
        SimpleNamespace(kernel=SimpleNamespace(ptr=77)), (5, 2), 128, (11, 22, np.int32(-4)), 1024
    )
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
    launch("out", "q", 0)  # the grid of no launch
    assert seen == ["stream of out", "stream of another"]
