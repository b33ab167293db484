"""The GPU engine decodes a model of Qwen2.5-0.5B's shape through each step, and gets the tokens of plain attention.

The plain engine (attention by the reference, in torch) goes first and chooses greedily. Every step then serves the
same requests and is held to the plain engine's tokens, so that a choice between near ties does not end the
comparison; at each choice its own best token is compared, where the plain engine's best two logits differ by more
than CLEAR.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from kernels.engine.architecture import Architecture, of_spec
from kernels.engine.assemble import Options, assemble
from kernels.engine.clock import StepClock
from kernels.engine.cuda_attention import padded, written_slots
from kernels.engine.gpu_engine import Engine
from kernels.engine.layout import Blocks, Layout
from kernels.engine.plain_attention import Attention, PlainAttention
from kernels.engine.pools import Pools
from kernels.engine.ragged import Ragged
from kernels.engine.speaker import Said
from kernels.engine.weights import Affine, Weights, random_weights
from kernels.ladder.batch import LadderBatch, ladder_batch
from kernels.ladder.steps import STEPS, Step
from kernels.ladder.v4_ragged import write
from testbed.core.request import Request
from testbed.core.shapes import read_model
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.beams import Replacement
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute

CLEAR = 2e-2  # between the best two logits, whose standard deviation is 1
MAX_LEN, BLOCK_SIZE = 256, 16
Choices = dict[tuple[int, ...], tuple[int, float]]


class StepAttention(Attention):
    """A step of the ladder as the engine's attention: new keys and values are written first, by step 4's kernel."""

    def __init__(self, pools: Pools, layout: Layout, step: Step) -> None:
        self.planes = pools.blocks(layout.block_size)
        self.layout = layout
        self.step = step
        self.batch: LadderBatch | None = None

    def open(self, batch: Ragged) -> None:
        """The flat arrays of an iteration."""
        tables = padded([place.ids for place in batch.places])
        news, contexts = [part.new for part in batch.parts], [part.context_len for part in batch.parts]
        flat = ladder_batch(news, contexts, batch.num_prompts, tables, self.layout.block_size)
        slots = torch.from_numpy(written_slots(batch, self.layout)).to(flat.slot_mapping.device)
        self.batch = replace(flat, slot_mapping=slots)

    def bind(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> Callable[[int], None]:
        """See Attention."""
        batch = self.batch
        assert batch is not None

        def attend(layer: int) -> None:
            caches = self.planes[2 * layer], self.planes[2 * layer + 1]
            write(*caches, k, v, batch.slot_mapping)
            self.step.attend(out, q, *caches, batch)

        return attend


@dataclass
class Hold:
    """Notes each choice, and puts the leader's token on top where there is one."""

    leader: Choices = field(default_factory=dict)
    choices: Choices = field(default_factory=dict)
    logits: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def watch(self, engine: Engine) -> None:
        """Stand between the model's logits and the choice."""
        speaker = engine.runner.speaker
        speak = speaker.speak

        def watched(logits: Tensor, said: list[Said], best: Tensor) -> dict[int, tuple[Replacement, ...]]:
            top = torch.topk(logits.float(), 2, dim=1)
            gaps, tokens, chosen = (top.values[:, 0] - top.values[:, 1]).tolist(), best.tolist(), best.clone()
            for group, index, row in said:
                text = tuple(speaker.streams.tokens[group.sequences[index].seq_id])
                self.choices[text], self.logits[text] = (tokens[row], gaps[row]), logits[row].clone()
                chosen[row] = self.leader.get(text, (tokens[row], 0.0))[0]
            return speak(logits, said, chosen)

        speaker.speak = watched  # type: ignore[method-assign]


def compare_all() -> list[dict[str, object]]:
    """One row a step: choices, those that are clear, those of them that are equal, the largest error of a logit.

    A last row has a planted fault, a first block read from the neighbour, which must show.
    """
    arch = of_spec(read_model("qwen2.5-0.5b"))
    arch = replace(arch, spec=replace(arch.spec, max_len=MAX_LEN))
    weights, asked = attentive_weights(arch, 0, "cuda", torch.float16), requests(arch.spec.vocab_size)
    leader = serve(arch, weights, asked, None, {})
    rows = []
    for step in (*STEPS, Step("planted fault", "", reads_a_neighbour)):
        row = compare(leader, serve(arch, weights, asked, step, leader.choices))
        found = row["same"] if step in STEPS else row["equal"] != row["clear"]
        rows.append({"step": step.name, **row, "right": found})
        print(*rows[-1].values(), sep=" | ", flush=True)
    return rows


def compare(leader: Hold, found: Hold) -> dict[str, object]:
    """What a run chose beside its leader."""
    clear = [text for text, (_, gap) in leader.choices.items() if gap > CLEAR]
    equal = sum(found.choices[text][0] == leader.choices[text][0] for text in clear)
    error = max(float((found.logits[t].float() - leader.logits[t].float()).abs().max()) for t in leader.logits)
    same = found.choices.keys() == leader.choices.keys() and equal == len(clear) > 0
    counts = {"choices": len(leader.choices), "clear": len(clear), "equal": equal}
    return {**counts, "logit_error": round(error, 5), "same": same}


def serve(
    arch: Architecture, weights: Weights, asked: list[Request], step: Step | None, leader: Choices,
    options: Options | None = None,
) -> Hold:  # fmt: skip
    """Serve the requests through a step, or plainly; held to the leader's tokens where it has some."""
    pool = PoolSpec(2 * len(asked) * MAX_LEN, MAX_LEN)
    scheduler = MixedPrefill(Paged(pool, BLOCK_SIZE), Recompute(), max_num_batched_tokens=1024, max_num_seqs=64)
    options = options or Options("cuda", torch.float16)
    engine = assemble(scheduler, pool, arch, weights, replace(options, clock=StepClock(0.1)))
    runner, layout = engine.runner, Blocks(arch.spec.num_kv_heads, BLOCK_SIZE)
    pools = runner.attention.pools  # type: ignore[attr-defined]
    runner.attention = StepAttention(pools, layout, step) if step else PlainAttention(pools, layout)
    hold = Hold(leader)
    hold.watch(engine)
    engine.serve(asked)
    return hold


def requests(vocab_size: int, count: int = 16) -> list[Request]:
    """Ragged prompts of 4 to 160 tokens that arrive while others decode, outputs of 12 to 40."""
    rng = np.random.default_rng(15)
    found = []
    for i in range(count):
        ids = tuple(rng.integers(vocab_size, size=int(np.exp(rng.uniform(np.log(4), np.log(160))))).tolist())
        found.append(Request(i, i * 10**11, len(ids), int(rng.integers(12, 41)), prompt_ids=ids))
    return found


def attentive_weights(arch: Architecture, seed: int, device: str, dtype: torch.dtype) -> Weights:
    """Random weights whose choices hang on attention, and whose logits have a standard deviation of 1.

    A random model with a tied head says its last token again, whatever attention does: here the head is its own.
    """
    weights = random_weights(arch, seed, device, dtype)
    generator = torch.Generator(device).manual_seed(seed)
    head = torch.randn(weights.head.shape, generator=generator, device=device, dtype=dtype)
    spread = float(weights.norm.weight.float().square().mean().sqrt()) * head.shape[1] ** 0.5
    return replace(weights, head=head, norm=Affine(weights.norm.weight / spread))


def reads_a_neighbour(out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: LadderBatch) -> None:
    """A planted fault: each sequence's first block is that of another sequence."""
    tables = batch.block_tables.clone()
    tables[:, 0] = tables[:, 0].roll(1)
    STEPS[-2].attend(out, q, k_cache, v_cache, replace(batch, block_tables=tables))
