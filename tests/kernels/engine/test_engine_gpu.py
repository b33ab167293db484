"""On a GPU: the small operations against torch, and the engine by kernels and graphs against itself
on the CPU.
"""

from dataclasses import replace

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)
pytest.importorskip("cupy", reason="CuPy is not installed")

from faulty_policies import FAULTS, caught  # noqa: E402
from generating import MODEL, small  # noqa: E402

from testbed.core.request import Request  # noqa: E402
from testbed.core.specs import ModelSpec  # noqa: E402
from testbed.experiments.runs.compose import configured  # noqa: E402
from testbed.kernels.engine import cuda_attention  # noqa: E402
from testbed.kernels.engine.architecture import Architecture  # noqa: E402
from testbed.kernels.engine.maths import FusedMaths, PlainMaths, rotary_table  # noqa: E402
from testbed.kernels.engine.random_weights import random_weights  # noqa: E402
from testbed.kernels.engine.served_run import make_engine  # noqa: E402
from testbed.kernels.engine.verify.against_plain import (  # noqa: E402
    by_tokens,
    largest_difference,
)
from testbed.kernels.engine.verify.scenarios import Scenario, record  # noqa: E402
from testbed.kernels.engine.weights import Affine  # noqa: E402
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching  # noqa: E402
from testbed.run.build import build  # noqa: E402


def normal(*shape, dtype=torch.float16):
    return torch.randn(shape, device="cuda").to(dtype)


def near(got, want, dtype):
    return torch.allclose(
        got.float(), want.float(), rtol=2**-7 if dtype is torch.bfloat16 else 2**-9, atol=2e-2
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("hidden", [128, 896, 5120, 9216])
def test_fused_operations_equal_torch(hidden, dtype):
    both = FusedMaths(), PlainMaths()
    for shift in (None, normal(hidden, dtype=dtype)):
        x = normal(37, hidden, dtype=dtype)
        xs, ys = [x, x.clone()], [torch.empty_like(x) for _ in both]
        bound = [maths.norm(y, x, 1e-5) for maths, y, x in zip(both, ys, xs, strict=True)]
        for carried in (
            None,
            normal(hidden, dtype=dtype),
            normal(hidden, dtype=dtype),
        ):  # the last by new pointers
            norm = Affine(
                normal(hidden, dtype=dtype), shift if shift is None else normal(hidden, dtype=dtype)
            )
            for launch in bound:
                launch(norm, carried)
            assert near(*ys, dtype)
            assert near(*xs, dtype)
    x, weight = normal(37, hidden, dtype=dtype), normal(256, hidden, dtype=dtype).t() / 16
    wide, narrow = ([normal(37, width, dtype=dtype) for _ in both] for width in (256, 128))
    for maths, y, less in zip(both, wide, narrow, strict=True):
        maths.relu_product(y, x, weight, wide[0].new_ones(256))
        maths.silu_mul(less, y)()
    assert near(*wide, dtype)
    assert near(*narrow, dtype)


@pytest.mark.parametrize("size", [64, 128])
def test_rotary_embedding_equals_torch(size):
    table = rotary_table(
        Architecture(ModelSpec("x", 1, 8 * size, 8, 2, size, 8, 3, 8, 500), "llama"), "cuda"
    )
    qkv, positions = normal(37, 12 * size), torch.randint(500, (37,), device="cuda")
    other = qkv.clone()
    for maths, rows in ((FusedMaths(), qkv), (PlainMaths(), other)):
        q, k, _ = (
            part.unflatten(1, (-1, size))
            for part in rows.split((8 * size, 2 * size, 2 * size), dim=1)
        )
        maths.turn(q, k, positions, table)()
    assert near(qkv, other, torch.float16)


@pytest.mark.parametrize("policy", FAULTS)
def test_planted_faults_are_caught(policy):
    assert "slot" in caught(policy, FAULTS[policy], "cuda", torch.float16)


@pytest.mark.parametrize("graphs", [0, 64])
def test_decodes_that_read_a_shared_prefix_once_have_the_same_logits(monkeypatch, graphs):
    """Alone and beside prompts, in either way of launching them."""
    arch = Architecture(ModelSpec("x", 2, 1024, 8, 2, 128, 256, 3, 512, 512), "llama")
    weights = random_weights(arch, 0, "cuda", torch.float16)
    scenario = Scenario(
        "prefix", PrefixCaching, common=100, num_requests=24, happened="hit_tokens", ahead=True
    )
    apart = by_tokens(record(scenario, arch, weights))
    launches, bind_prefix = [], cuda_attention.bind_prefix
    beside, begin = [], cuda_attention.CudaAttention.open
    monkeypatch.setattr(
        cuda_attention,
        "bind_prefix",
        lambda *given, **options: (
            launches.append(options["max_run"]) or bind_prefix(*given, **options)
        ),
    )
    monkeypatch.setattr(
        cuda_attention.CudaAttention,
        "open",
        lambda attention, batch: (
            begin(attention, batch) or beside.append(attention.shares and batch.num_prompts)
        ),
    )
    together = by_tokens(record(replace(scenario, share_from=1), arch, weights, graphs))
    assert max(launches) >= 8
    assert any(beside)
    assert len(apart.keys() & together.keys()) >= 24
    largest = max(float(logits.abs().max()) for logits in apart.values())
    assert largest_difference(apart, together) <= 1e-2 * largest


def serves_a_request(words):
    """Nothing refers to the engine when this returns."""
    with make_engine(build(configured(words))) as engine:
        return engine.serve([Request(0, 0, 20, 5)]).outputs


def test_a_second_engine_of_a_process_has_the_memory_of_the_first():
    """Weights in the place of the first engine's pool would keep all of it."""
    heads = {"num_heads": 64, "num_kv_heads": 64, "head_size": 64}
    shape = MODEL | heads | {"hidden_size": 4096, "ffn_size": 4096}
    _, total = torch.cuda.mem_get_info()
    gib = 0.6 * total / 2**30
    words = [*small(shape), "server=h200", f"++server.kv_memory_gib={{small: {gib}}}"]
    for _ in range(2):
        assert serves_a_request(words)
