"""Iterations with prompts whose layers are graphs, against the plain path (on a GPU)."""

from functools import partial
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tiny_models as tiny  # noqa: E402

from testbed.core.specs import ModelSpec  # noqa: E402
from testbed.engine.wall_clock import StepClock  # noqa: E402
from testbed.experiments.runs.compose import configured  # noqa: E402
from testbed.kernels.engine.architecture import Architecture  # noqa: E402
from testbed.kernels.engine.graphs import Captures  # noqa: E402
from testbed.kernels.engine.layout import make_pools  # noqa: E402
from testbed.kernels.engine.maths import PlainMaths  # noqa: E402
from testbed.kernels.engine.network import Network, PlainAttention  # noqa: E402
from testbed.kernels.engine.on_device import eager  # noqa: E402
from testbed.kernels.engine.prompt_graphs import PromptGraphs  # noqa: E402
from testbed.kernels.engine.random_weights import random_weights  # noqa: E402
from testbed.kernels.engine.records import Timer  # noqa: E402
from testbed.kernels.engine.served_run import Options, assemble  # noqa: E402
from testbed.kernels.engine.sizes import LARGEST, sizes_up_to  # noqa: E402
from testbed.memory.paged.paged import Paged  # noqa: E402
from testbed.sched.chunked import ChunkedPrefill  # noqa: E402
from testbed.sched.preemption import Recompute  # noqa: E402

ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
# The first is alone when its first chunk is computed, of which no token is wanted.
LENGTHS = [(70, 6), (30, 9), (7, 20), (50, 5), (3, 30), (40, 12), (12, 25)]


def on_gpu(test):
    for mark in ON_GPU:
        test = mark(test)
    return test


def test_sizes_have_room_and_waste_little():
    sizes = sizes_up_to(1000)
    assert sizes[:4] == [1, 2, 4, 8]
    assert sizes[-1] == 1024
    assert all(larger <= max(size + 32, 2 * size, size * 1.14) for size, larger in pairwise(sizes))
    assert sizes_up_to(17)[-1] == 24
    assert sizes_up_to(LARGEST + 5)[-1] == LARGEST


def test_whatever_the_default_scheduler_plans_is_launched_by_graphs():
    """Between GPUs what is launched kernel by kernel takes half as long again."""
    config = configured(["engine=gpu"])
    most = config.scheduler.parameters["max_num_batched_tokens"]
    assert sizes_up_to(config.engine.prompt_graphs)[-1] == most
    for size, larger in pairwise(sizes_up_to(most)[-5:]):
        assert larger <= 1.07 * size  # what one GPU would compute faster kernel by kernel


def chunked(policy):
    return ChunkedPrefill(policy, Recompute(), max_num_batched_tokens=48, max_num_seqs=16)


@on_gpu
@pytest.mark.parametrize("scheduler", [tiny.mixed, chunked])
@pytest.mark.parametrize("family", ["opt", "llama", "qwen2", "window"])
def test_tiny_models_in_float32_say_the_same_tokens(family, scheduler):
    """Plain operations and plain attention, by graphs on a GPU, against the CPU's plain path."""
    small, requests = tiny.pool(128, 256), tiny.requests(LENGTHS)
    make = family, partial(Paged, block_size=4), scheduler, small, False
    plain = tiny.engine(*make)
    expected = plain.serve(requests).outputs
    graphs = tiny.engine(*make)
    by_graphs(graphs, family)
    assert graphs.serve(requests).outputs == expected


def by_graphs(engine, family):
    """The engine's forward pass moves to a GPU, as graphs of at most 64 tokens."""
    arch, runner = tiny.architecture(family), engine.runner
    weights = random_weights(arch, 0, "cpu", torch.float32)
    moved = on_device(weights)
    attention = runner.attention
    spec, layout = attention.pools.spec, attention.layout
    pools = make_pools(
        spec, tiny.pool(128, 256), layout.block_size, moved.embedding, spec.num_layers
    )
    network = Network(arch, moved, PlainMaths())
    runner.network, runner.attention = network, PlainAttention(pools, layout, arch.windows)
    runner.moves = type(runner.moves)(pools, layout, runner.state)
    runner.timer = Timer(on_gpu=True)  # which waits until the GPU has computed the tokens
    runner.eager = eager(network, runner.attention, runner.timer.launched)
    capture = Captures().sharing_memory()
    graphs = PromptGraphs(
        network, runner.attention, 64, runner.eager, runner.timer.launched, capture
    )
    runner.forward = graphs.forward


def on_device(weights):
    """The same weights on the GPU."""
    if isinstance(weights, torch.Tensor):
        return weights.cuda()
    if isinstance(weights, list):
        return [on_device(part) for part in weights]
    if isinstance(weights, tuple):
        return type(weights)(*map(on_device, weights))
    if weights is None or not hasattr(weights, "__dataclass_fields__"):
        return weights
    fields = {name: on_device(getattr(weights, name)) for name in weights.__dataclass_fields__}
    return type(weights)(**fields)


@on_gpu
@pytest.mark.parametrize("scheduler", [tiny.mixed, chunked])
def test_kernels_by_graphs_say_what_they_say_one_by_one(scheduler):
    """In fp16 a padded product may round in another way: tokens may differ if two are as likely,
    which is rare.
    """
    spec = ModelSpec("llama", 4, 512, 8, 2, 64, 1024, 3, 1000, 512)
    arch = Architecture(spec, "llama")
    weights = random_weights(arch, 0, "cuda", torch.float16)
    outputs = []
    for prompt_graphs in (0, 64):
        policy = Paged(tiny.pool(1024), 16)
        options = Options(clock=StepClock(), prompt_graphs=prompt_graphs)
        engine = assemble(scheduler(policy), tiny.pool(1024), arch, weights, options)
        outputs.append(engine.serve(tiny.requests(LENGTHS)).outputs)
    plain, graphs = ([out[i][0] for i in sorted(out)] for out in outputs)
    same = sum(a == b for a, b in zip(plain, graphs, strict=True))
    assert same >= len(LENGTHS) - 1
