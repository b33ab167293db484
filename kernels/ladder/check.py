"""Every step against the float64 reference, on random batches of prompts and decodes, poison where nobody owns."""

from dataclasses import dataclass

import numpy as np
import torch

from kernels.ladder.batch import LadderBatch, ladder_batch
from kernels.ladder.steps import STEPS
from kernels.ladder.v4_ragged import write
from kernels.verify import reference
from kernels.verify.random_batches import Batch, Shape, random_batch
from kernels.verify.verify_attention import TOLERANCE, poisoned


@dataclass(frozen=True, slots=True)
class Case:
    """One random batch: its shape, sequences with several new tokens, sequences with one."""

    shape: Shape
    num_prompts: int
    num_decodes: int
    seed: int = 0
    longest: int = 600


CASES = (
    Case(Shape(14, 2, 64, 16), 3, 5),
    Case(Shape(32, 8, 128, 16), 0, 6, longest=1500),
    Case(Shape(4, 4, 128, 1, torch.bfloat16), 2, 2),
    Case(Shape(12, 1, 80, 3), 2, 3),
    Case(Shape(8, 2, 256, 256, torch.bfloat16), 1, 4),
    Case(Shape(3, 3, 96, 32), 4, 0),
)


def check(case: Case) -> dict[str, float]:
    """The largest error of every step, relative to the largest value of its row."""
    batch, inputs = make(case)
    tensors = inputs.q, inputs.k_cache, inputs.v_cache
    want = reference.paged_prefill(*tensors, inputs.block_tables, list(batch.news), list(batch.contexts))
    runs = {step.name: poisoned(inputs.q, lambda out, s=step: s.attend(out, *tensors, batch)) for step in STEPS}
    return {name: reference.relative_error(got, want) for name, got in runs.items()}


def make(case: Case) -> tuple[LadderBatch, Batch]:
    """A batch and the memory that it reads."""
    rng = np.random.default_rng(case.seed)
    contexts = rng.integers(1, case.longest + 1, case.num_prompts + case.num_decodes).tolist()
    news = [int(rng.integers(1, end + 1)) for end in contexts[: case.num_prompts]] + [1] * case.num_decodes
    inputs = random_batch(rng, case.shape, contexts, sum(news))
    tables = inputs.block_tables.cpu().numpy()
    return ladder_batch(news, contexts, case.num_prompts, tables, case.shape.block_size), inputs


def writes_exactly(case: Case) -> bool:
    """Whether step 4 puts new keys and values exactly where the reference does, and nothing elsewhere."""
    batch, inputs = make(case)
    size = (sum(batch.news), case.shape.num_kv_heads, 2 * case.shape.head_size)
    k, v = torch.randn(size, device="cuda").to(case.shape.dtype).chunk(2, dim=2)
    k, v = k.contiguous(), v.contiguous()
    ours, theirs = (tuple(torch.zeros_like(inputs.k_cache) for _ in range(2)) for _ in range(2))
    _, first = np.unique(batch.slot_mapping.cpu().numpy(), return_index=True)  # blocks may be shared
    slots = torch.full_like(batch.slot_mapping, -1)
    slots[first[::2]] = batch.slot_mapping[first[::2]]
    write(*ours, k, v, slots)
    for cache, new in zip(theirs, (k, v), strict=True):
        reference.write_cache(cache, new, slots.tolist())
    return all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


def check_all() -> list[dict[str, object]]:
    """One row a case and step: its error, the tolerance, and whether it is right."""
    rows: list[dict[str, object]] = []
    for case in CASES:
        s, limit = case.shape, TOLERANCE[case.shape.dtype]
        what = f"{s.num_heads}/{s.num_kv_heads} heads of {s.head_size}, blocks of {s.block_size}"
        for name, error in check(case).items():
            right = error <= limit
            rows.append({"step": name, "case": what, "error": f"{error:.2e}", "tolerance": limit, "right": right})
        exact = writes_exactly(case)
        rows.append(
            {"step": "v4 write", "case": what, "error": "0" if exact else "some", "tolerance": 0, "right": exact}
        )
    return rows
