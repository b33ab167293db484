"""The memory of an engine by its shapes is that of the tensors that it makes."""

from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tiny_models as tiny  # noqa: E402

import testbed.kernels  # noqa: E402
from testbed.core.shapes import read_model  # noqa: E402
from testbed.kernels.engine.cuda_attention import WORKSPACE_CHUNKS, WORKSPACE_SEQS  # noqa: E402
from testbed.kernels.engine.held_memory import (  # noqa: E402
    ALL_REDUCE_BYTES,
    ALL_REDUCES,
    CUDA_BYTES,
    LAYER_BYTES,
    NCCL_BYTES,
    Rank,
    held_memory,
)
from testbed.kernels.engine.layout import make_pools  # noqa: E402
from testbed.kernels.engine.network import Buffers  # noqa: E402
from testbed.kernels.engine.parallel.shards import Shard  # noqa: E402
from testbed.kernels.launch.attention import decode_workspace  # noqa: E402
from testbed.memory.policy import PoolSpec  # noqa: E402
from testbed.run.config import EngineConfig  # noqa: E402

RESULTS = Path(testbed.kernels.__file__).parent / "results" / "engine"
MEASURED = pd.read_csv(RESULTS / "held-memory.csv", comment="#")
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
    assert held.captured == 0
    captured = held_memory(arch.spec, pool, 16, ENGINE)
    assert min(captured._replace(drafter=1, nccl=1)) > 0


def outside_pytorch(num_gpus, graphs):
    """The bytes that one run of Llama-3-8B had in use and PyTorch did not hold."""
    runs = MEASURED[(MEASURED.model == "llama-3-8b") & (MEASURED.gpu == "h200")]
    (run,) = runs[(runs.num_gpus == num_gpus) & (runs.graphs == graphs)].itertuples()
    return (run.used - run.of_torch) * 2**30


def test_what_lies_outside_pytorch_is_that_of_four_runs():
    bare, bare_of_two = outside_pytorch(1, 0), outside_pytorch(2, 0)
    spec, pool = read_model("llama-3-8b"), PoolSpec(16 * 8000, 8192, num_gpus=2)
    layers = Rank(spec, pool, 16, EngineConfig()).captured_layers
    of_graphs = outside_pytorch(1, 256) - bare
    with_all_reduces = outside_pytorch(2, 256) - bare_of_two
    per_layer = [
        bare,
        bare_of_two - bare,
        of_graphs / layers,
        (with_all_reduces - of_graphs) / layers / ALL_REDUCES,
    ]
    assert per_layer == pytest.approx(
        [CUDA_BYTES, NCCL_BYTES, LAYER_BYTES, ALL_REDUCE_BYTES], rel=1e-3
    )
