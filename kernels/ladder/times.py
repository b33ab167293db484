"""Times of every step on the same batches: as a captured graph (the GPU's part), and launched from Python."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kernels.ladder.batch import ladder_batch
from kernels.ladder.steps import STEPS, Step
from kernels.measure.bench_inputs import Pools, random_tables
from kernels.measure.sweeps import ragged_lens
from kernels.measure.timing import num_rotations, time_graph, time_stream
from kernels.verify import reference
from kernels.verify.random_batches import Shape
from kernels.verify.verify_attention import TOLERANCE, poisoned

SHAPE = Shape(32, 8, 128)  # of LLaMA-3-8B, blocks of 16
MAX_LAYERS = 16  # caches that calls take in turn; a graph of the first steps has a node for each token and layer


@dataclass(frozen=True, slots=True)
class Load:
    """What is computed: new and cached tokens of each sequence, prompts first."""

    name: str
    news: Sequence[int]
    contexts: Sequence[int]
    num_prompts: int


def decodes(name: str, contexts: Sequence[int]) -> Load:
    """A token of each sequence."""
    return Load(name, [1] * len(contexts), contexts, 0)


def loads() -> list[Load]:
    """The batches that every step is timed on."""
    ragged, mixed = ragged_lens(32, 400, 2048), ragged_lens(28, 400, 2048)
    return [
        decodes("1 x 1,024", [1024]),
        decodes("8 x 256", [256] * 8),
        decodes("32 x 1,024", [1024] * 32),
        decodes("32 of mean 400", ragged),
        Load("28 of mean 400 and 4 prompts of 128", [128] * 4 + [1] * 28, [128] * 4 + mixed, 4),
    ]


class LoadInputs:
    """A load over several layers of caches, together larger than the L2 cache where MAX_LAYERS allows."""

    def __init__(self, pools: Pools, load: Load, shape: Shape = SHAPE) -> None:
        contexts = np.array(load.contexts)
        self.kv_bytes = 4 * int(contexts.sum()) * shape.num_kv_heads * shape.head_size
        blocks = -(-contexts // shape.block_size)
        self.layers = min(num_rotations(self.kv_bytes), MAX_LAYERS)
        tables = random_tables(np.random.default_rng(0), blocks, int(blocks.sum()))
        self.k_cache, self.v_cache = pools.caches(self.layers, int(blocks.sum()), shape)
        self.batch = ladder_batch(load.news, load.contexts, load.num_prompts, tables.cpu().numpy(), shape.block_size)
        self.q = torch.randn(sum(load.news), shape.num_heads, shape.head_size, dtype=shape.dtype, device="cuda")
        self.out = torch.empty_like(self.q)

    def calls(self, step: Step) -> list[Callable[[], None]]:
        """One call a layer."""
        return [
            lambda i=i: step.attend(self.out, self.q, self.k_cache[i], self.v_cache[i], self.batch)
            for i in range(self.layers)
        ]

    def error(self, step: Step) -> float:
        """How far a step is from the float64 reference on the first layer."""
        caches, batch = (self.k_cache[0], self.v_cache[0]), self.batch
        want = reference.paged_prefill(self.q, *caches, batch.block_tables, list(batch.news), list(batch.contexts))
        return reference.relative_error(poisoned(self.q, lambda out: step.attend(out, self.q, *caches, batch)), want)


def time_all(pools: Pools) -> list[dict[str, object]]:
    """One row a load and step; a step that is wrong on a load is not timed."""
    rows: list[dict[str, object]] = []
    for load in loads():
        inputs = LoadInputs(pools, load)
        for step in STEPS:
            error = inputs.error(step)
            if error > TOLERANCE[SHAPE.dtype]:
                raise SystemExit(f"{step.name} is wrong on {load.name} by {error:.1e}: nothing more was timed")
            graph, stream = time_graph(inputs.calls(step)), time_stream(inputs.calls(step)[0])
            times = (graph.median_us, graph.low_us, graph.high_us, stream.median_us)
            names = ("median_us", "low_us", "high_us", "from_python_us")
            rows.append({"load": load.name, "step": step.name, "kv_bytes": inputs.kv_bytes,
                         **{name: round(time, 2) for name, time in zip(names, times, strict=True)}})  # fmt: skip
            print(f"{load.name} | {step.name} | {graph} | {stream.median_us:.0f} us from Python", flush=True)
        torch.cuda.empty_cache()
    return rows
