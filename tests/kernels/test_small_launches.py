"""Launches of the small operations between matrix products."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from fake_gpu import FakeArray, launched
from kernel_calls import norm_call, rotate_call, silu_call

from testbed.kernels.engine.maths import bind_add_norm, bind_rotate, bind_silu_mul


def test_norm_adds_the_residual(gpu):
    launch, addresses = launched(gpu, bind_add_norm, norm_call())
    assert (launch.source, launch.kernel) == ("network.cu", "add_norm")
    constants = {"HIDDEN": 512, "NUM_THREADS": 64, "SHIFT": 1, "CARRY": 1, "BF16": 0}
    assert launch.defines == constants
    assert (launch.grid, launch.threads) == ((7,), 64)  # tokens; a thread for 8 values
    carried = addresses.pop("carried")
    assert launch.arguments["carry"] == carried
    for name, address in addresses.items():
        assert launch.arguments[name] == address, name
    assert launch.arguments["eps"] == pytest.approx(1e-5)


@pytest.mark.parametrize(
    ("vectors", "shift", "carry"),
    [
        (("gain",), 0, 0),  # RMSNorm
        (("gain", "carried"), 0, 1),
        (("gain", "shift"), 1, 0),  # LayerNorm
    ],
)
def test_norm_without_shift_or_residual(gpu, vectors, shift, carry):
    launch, _ = launched(gpu, bind_add_norm, norm_call(vectors=vectors))
    assert (launch.defines["SHIFT"], launch.defines["CARRY"]) == (shift, carry)
    assert bool(launch.arguments["shift"]) == shift
    assert bool(launch.arguments["carry"]) == carry


@pytest.mark.parametrize(
    ("hidden", "threads"),
    [
        (512, 64),
        (520, 96),  # 65 vectors of 8 values: three warps
        (2048, 256),
        (8192, 256),  # four vectors a thread
        (8200, 1024),
    ],
)
def test_a_norm_has_the_threads_for_its_hidden_size(gpu, hidden, threads):
    launch, _ = launched(gpu, bind_add_norm, norm_call(hidden=hidden))
    assert launch.threads == launch.defines["NUM_THREADS"] == threads
    assert launch.defines["HIDDEN"] == hidden


def test_rotate_reads_queries_and_keys_in_place(gpu):
    launch, addresses = launched(gpu, bind_rotate, rotate_call())
    assert (launch.source, launch.kernel) == ("network.cu", "rotate")
    assert launch.defines == {"HEAD_SIZE": 64, "BF16": 0}
    assert (launch.grid, launch.threads) == ((7,), 256)
    for name, address in addresses.items():
        assert launch.arguments[name] == address, name
    assert launch.arguments["q_stride"] == 384 * 8
    assert launch.arguments["k_stride"] == 384 * 2
    assert (launch.arguments["num_heads"], launch.arguments["num_kv_heads"]) == (8, 2)


def test_silu_is_launched_over_channels_and_tokens(gpu):
    launch, addresses = launched(gpu, bind_silu_mul, silu_call())
    assert (launch.source, launch.kernel) == ("network.cu", "silu_mul")
    assert launch.defines == {"BF16": 0}
    assert launch.arguments == {**addresses, "vectors": 5008 / 8}
    assert (launch.grid, launch.threads) == ((3, 7), 256)  # 626 vectors in thread blocks of 256


@pytest.mark.parametrize(
    ("wrapper", "call"),
    [
        (bind_add_norm, {"y": (7, 512), "x": (7, 512), "gain": (512,)}),
        (bind_silu_mul, {"y": (7, 512), "x": (7, 1024)}),
    ],
)
def test_bfloat16_is_compiled_for(gpu, wrapper, call):
    arrays = {name: FakeArray(*shape, dtype="bfloat16") for name, shape in call.items()}
    options = {"eps": 1e-5} if wrapper is bind_add_norm else {}
    wrapper(**arrays, **options)
    assert gpu.launches[0].defines["BF16"] == 1
