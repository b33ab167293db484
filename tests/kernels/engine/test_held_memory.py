"""The memory of an engine by its shapes is that of the tensors that it makes."""

from dataclasses import asdict, replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tiny_models as tiny  # noqa: E402

from testbed.config import EngineConfig  # noqa: E402
from testbed.kernels.engine.cuda_attention import WORKSPACE_CHUNKS, WORKSPACE_SEQS  # noqa: E402
from testbed.kernels.engine.held_memory import held_memory  # noqa: E402
from testbed.kernels.engine.layout import make_pools  # noqa: E402
from testbed.kernels.engine.network import Buffers  # noqa: E402
from testbed.kernels.engine.parallel.shards import Shard  # noqa: E402
from testbed.kernels.launch.attention import decode_workspace  # noqa: E402
from testbed.memory.policy import PoolSpec  # noqa: E402

FAMILIES = ("opt", "llama")
GPUS = (1, 2)
ENGINE = EngineConfig(dtype="float32", graphs=8, prompt_graphs=16, warm=(4,))


def parts(family, num_gpus):
    """The whole model's shape in float32, rank 0's, and a pool."""
    arch = replace(tiny.architecture(family), spec=replace(tiny.SHAPES[family], dtype_bytes=4))
    model, local = arch.spec, Shard(arch, 0, num_gpus).local
    layer_bytes = model.kv_bytes_per_token * model.kv_copies(num_gpus) // model.num_layers
    pool = PoolSpec(
        num_slots=64,
        max_len=128,
        tiers=(),
        layer_bytes=layer_bytes,
        num_layers=model.num_layers,
        num_gpus=num_gpus,
    )
    return arch, local, pool


def num_bytes(value):
    """Of all tensors in a structure; one that is there twice counts once."""
    found = {}

    def walk(one):
        if isinstance(one, torch.Tensor):
            found[one.data_ptr()] = one.nbytes
        elif isinstance(one, list | tuple):
            for part in one:
                walk(part)
        elif hasattr(one, "__dataclass_fields__"):
            for name in one.__dataclass_fields__:
                walk(getattr(one, name))

    walk(value)
    return sum(found.values())


@pytest.mark.parametrize("num_gpus", GPUS)
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_pool_and_buffers_are_those_of_the_tensors(family, num_gpus):
    arch, local, pool = parts(family, num_gpus)
    held = held_memory(arch.spec, pool, 16, ENGINE)
    weights = tiny.weights(arch, part=Shard(arch, 0, num_gpus))
    assert held.weights == pytest.approx(num_bytes(weights), rel=0.08)  # but for norms and biases
    like = weights.embedding
    assert held.kv_cache == make_pools(local.spec, pool, 16, like, 2).device.nbytes
    buffers = Buffers.beside(like.new_zeros(4, arch.spec.hidden_size), local)
    assert held.eager == num_bytes(buffers)
    assert held.logits == 256 * arch.spec.vocab_size * 4


@pytest.mark.parametrize("num_gpus", GPUS)
def test_the_workspace_of_attention_is_that_of_its_launches(num_gpus):
    arch, local, pool = parts("llama", num_gpus)
    q = torch.empty(WORKSPACE_SEQS, local.spec.num_heads, local.spec.head_size)
    workspace = decode_workspace(q, WORKSPACE_CHUNKS)
    assert held_memory(arch.spec, pool, 16, ENGINE).attention == num_bytes(tuple(workspace))


def test_what_is_not_captured_holds_nothing():
    arch, _, pool = parts("llama", 1)
    none = EngineConfig(**(asdict(ENGINE) | {"graphs": 0, "prompt_graphs": 0, "warm": ()}))
    held = held_memory(arch.spec, pool, 16, none)
    assert held.prompt_graphs == held.decode_graphs == held.logits == held.eager == 0
    captured = held_memory(arch.spec, pool, 16, ENGINE)
    assert min(captured._replace(drafter=1)) > 0
