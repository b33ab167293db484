"""On a GPU: the pools of lower tiers take the host's memory that was asked for."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)
pytest.importorskip("cupy", reason="CuPy is not installed")

from testbed.core.errors import InputError  # noqa: E402
from testbed.core.shapes import read_model  # noqa: E402
from testbed.core.specs import GIB  # noqa: E402
from testbed.kernels.engine.layout import make_pools  # noqa: E402
from testbed.kernels.launch.host_memory import pinned  # noqa: E402
from testbed.memory.policy import PoolSpec, Tier  # noqa: E402

LLAMA = read_model("llama-3.1-8b")


def locked_bytes():
    """Of this process: the driver shares the pages that it locks, and all are resident."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(r"RssShmem:\s+(\d+) kB", status)[1]) << 10


def pools_with(gib):
    """Pools of blocks of 16 with a tier of so many GiB."""
    slots = int(gib * GIB) // LLAMA.kv_bytes_per_token
    tier = Tier("dram", slots, 1e9, 1e9)
    like = torch.empty(0, dtype=torch.bfloat16, device="cuda")
    return make_pools(LLAMA, PoolSpec(64, 64, (tier,)), 16, like, LLAMA.num_layers)


@pytest.mark.parametrize("gib", [1, 5, 20])
def test_a_tier_locks_the_memory_that_was_asked_for(gib):
    pinned((1,), torch.uint8)  # what CUDA itself takes is there
    before = locked_bytes()
    pools = pools_with(gib)
    assert pools.below["dram"].is_pinned()
    assert gib * GIB * 0.99 <= locked_bytes() - before <= gib * GIB * 1.01
    del pools
    assert locked_bytes() - before <= 0.01 * gib * GIB


def test_more_memory_than_the_host_has_is_refused():
    with pytest.raises(InputError, match="pinned host memory"):
        pinned((1 << 45,), torch.uint8)
