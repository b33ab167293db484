"""Numbers that public explanations of paged attention work out by hand: a blog's pool, a padded batch."""

import pytest
from manual_driver import ManualDriver

from testbed.core.request import Request
from testbed.core.shapes import read_model
from testbed.core.specs import GpuSpec, ServerSpec
from testbed.memory.contiguous.contiguous import ContiguousMax
from testbed.memory.policy import PoolSpec
from testbed.sched.preemption import Recompute
from testbed.sched.static_batch import StaticBatch


def test_a_blog_s_pool_of_llama_3_70b():
    """10.7 GB for a request of 32,768 tokens, 5.24 MB a block of 16, 3,052 blocks in 16 GB, 3,051 of them whole."""
    model = read_model("llama-3-70b")
    assert model.kv_bytes_per_token * 32_768 / 1e9 == pytest.approx(10.7, abs=0.05)
    block = model.kv_bytes_per_token * 16
    assert block / 1e6 == pytest.approx(5.24, abs=0.005)
    assert round(16e9 / block) == 3052
    gpu = GpuSpec("gpu", 10**12, 1e12, 1e15, 1e10, 1e11)
    assert ServerSpec("server", gpu, 1, {model.name: 16e9 / 2**30}).kv_slots(model, 16) == 3051 * 16


def test_a_padded_batch_wastes_two_thirds_of_its_attention():
    """Prompts of 128, 64, 32 and 8 tokens, padded to 128: 67% of the pairs of a query and a key are padding."""
    lengths = (128, 64, 32, 8)
    policy = ContiguousMax(PoolSpec(4 * 256, 256), block_size=16)
    run = ManualDriver(StaticBatch(policy, Recompute(), max_batch_size=4, max_padded_len=256))
    for i, length in enumerate(lengths):
        run.add(Request(i, 0, length, 2))
    plan, _ = run.step()
    padded = [chunk.new + chunk.padding for chunk in plan.chunks]
    assert padded == [128] * 4
    needed, computed = (sum(n * (n + 1) // 2 for n in counts) for counts in (lengths, padded))
    assert 1 - needed / computed == pytest.approx(0.67, abs=0.005)
