"""A GPU that records launches instead of making them."""

import pytest


@pytest.fixture
def gpu(monkeypatch):
    """Wrappers see an H200 of 132 multiprocessors; `gpu.launches` has what they would launch."""
    pytest.importorskip("torch", reason="torch is not installed")
    from fake_gpu import NUM_SMS, FakeArray, FakeGpu

    from testbed.kernels.engine import maths
    from testbed.kernels.launch import attention, cache_ops, launch, prefill_attention

    fake = FakeGpu()
    replacements = {
        "load": fake.load,
        "Launch": fake.launch,
        "require_gpu": lambda: fake,
        "multiprocessors": lambda: NUM_SMS,
        "compute_capability": lambda: 90,
        "counters": lambda device: (None, iter([64])),
        "rows_of_memory": lambda *key: FakeArray(1, pointer=128),
    }
    for module in (attention, cache_ops, launch, maths, prefill_attention):
        for name in replacements.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, replacements[name])
    return fake
