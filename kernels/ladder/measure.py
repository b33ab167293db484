"""Checks every step against the float64 reference, then times it on the same batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from testbed.kernels.ladder.batch import LadderBatch, ladder_batch
from testbed.kernels.ladder.draw import draw
from testbed.kernels.ladder.steps import STEPS, Attend, write
from testbed.kernels.measure.bench_inputs import Calls, Pools, PrefillInputs
from testbed.kernels.measure.fingerprint import fingerprint, in_words, write_rows
from testbed.kernels.measure.sweeps import ragged_lens
from testbed.kernels.measure.timing import time_graph, time_stream, warm_up
from testbed.kernels.verify import reference
from testbed.kernels.verify.random_batches import Batch, Shape, random_batch
from testbed.kernels.verify.verify_attention import TOLERANCE, Run, errors

Row = dict[str, object]
SHAPE = Shape(32, 8, 128)  # of LLaMA-3-8B, blocks of 16
MAX_LAYERS = 16  # caches that calls rotate over; a graph of the first steps has a node for each token and layer


@dataclass(frozen=True, slots=True)
class Case:
    """One random batch: its shape, sequences with several new tokens, sequences with one."""

    shape: Shape
    num_prompts: int
    num_decodes: int
    seed: int = 0
    longest: int = 600


@dataclass(frozen=True, slots=True)
class Load:
    """A timed batch: new and cached tokens of each sequence, prompts first."""

    name: str
    news: Sequence[int]
    contexts: Sequence[int]
    num_prompts: int = 0


CASES = (
    Case(Shape(14, 2, 64, 16), 3, 5),
    Case(Shape(32, 8, 128, 16), 0, 6, longest=1500),
    Case(Shape(4, 4, 128, 1, torch.bfloat16), 2, 2),
    Case(Shape(12, 1, 80, 3), 2, 3),
    Case(Shape(8, 2, 256, 256, torch.bfloat16), 1, 4),
    Case(Shape(3, 3, 96, 32), 4, 0),
)


def run(out: Path) -> None:
    """Check, time and write all results to a folder; exits before timing if a check fails."""
    about = in_words(fingerprint())
    right = [row for case in CASES for row in check(case)]
    write_rows(out / "right.csv", right, about)
    wrong = [row for row in right if not row["right"]]
    if wrong:
        raise SystemExit("\n".join(["a step disagrees with the reference; nothing was timed", *map(str, wrong)]))
    print(f"{len(right)} checks right", flush=True)
    warm_up()
    pools = Pools(4 << 30)
    write_rows(out / "times.csv", [row for load in loads() for row in times(pools, load)], about)
    print(draw(out))


def check(case: Case) -> list[Row]:
    """One row per step: its error on a case, the tolerance, and whether it passed."""
    s, limit = case.shape, TOLERANCE[case.shape.dtype]
    what = f"{s.num_heads}/{s.num_kv_heads} heads of {s.head_size}, blocks of {s.block_size}"
    batch, inputs = make(case)
    found = step_errors(batch, inputs.q, inputs.k_cache, inputs.v_cache)
    rows: list[Row] = [
        {"step": name, "case": what, "error": f"{error:.2e}", "tolerance": limit, "right": error <= limit}
        for name, error in found.items()
    ]
    exact = writes_exactly(case)
    written: Row = {"step": "v4 write", "case": what, "error": "0" if exact else "some", "tolerance": 0, "right": exact}
    return [*rows, written]


def make(case: Case) -> tuple[LadderBatch, Batch]:
    """A batch and its memory, with NaN in unowned slots."""
    rng = np.random.default_rng(case.seed)
    contexts = rng.integers(1, case.longest + 1, case.num_prompts + case.num_decodes).tolist()
    news = [int(rng.integers(1, end + 1)) for end in contexts[: case.num_prompts]] + [1] * case.num_decodes
    inputs = random_batch(rng, case.shape, contexts, sum(news))
    tables = inputs.block_tables.cpu().numpy()
    return ladder_batch(news, contexts, case.num_prompts, tables, case.shape.block_size), inputs


def step_errors(batch: LadderBatch, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> dict[str, float]:
    """The largest error of every step, relative to the largest value of its row."""

    def filled_by(step: Attend) -> Run:
        return lambda out: step(out, q, k_cache, v_cache, batch)

    want = reference.paged_prefill(q, k_cache, v_cache, batch.block_tables, list(batch.news), list(batch.contexts))
    return errors(q, want, {name: filled_by(step) for name, step in STEPS.items()})


def writes_exactly(case: Case) -> bool:
    """Whether step 4 puts new keys and values exactly where the reference does, and nothing elsewhere."""
    batch, inputs = make(case)
    size = (sum(batch.news), case.shape.num_kv_heads, 2 * case.shape.head_size)
    k, v = torch.randn(size, device="cuda").to(case.shape.dtype).chunk(2, dim=2)
    k, v = k.contiguous(), v.contiguous()
    ours, theirs = (torch.zeros_like(torch.stack([inputs.k_cache, inputs.v_cache])) for _ in range(2))
    _, first = np.unique(batch.slot_mapping.cpu().numpy(), return_index=True)  # blocks may be shared
    slots = torch.full_like(batch.slot_mapping, -1)
    slots[first[::2]] = batch.slot_mapping[first[::2]]
    write(ours[0], ours[1], k, v, slots)
    for cache, new in zip(theirs, (k, v), strict=True):
        reference.write_cache(cache, new, slots.tolist())
    return torch.equal(ours, theirs)


def loads() -> list[Load]:
    """The batches for the timings of all steps."""
    ragged, mixed = ragged_lens(32, 400, 2048), ragged_lens(28, 400, 2048)
    return [
        Load("1 x 1,024", [1], [1024]),
        Load("8 x 256", [1] * 8, [256] * 8),
        Load("32 x 1,024", [1] * 32, [1024] * 32),
        Load("32 of mean 400", [1] * 32, ragged),
        Load("28 of mean 400 and 4 prompts of 128", [128] * 4 + [1] * 28, [128] * 4 + mixed, 4),
    ]


def times(pools: Pools, load: Load) -> list[Row]:
    """One row per step: time as a captured graph (GPU only) and launched from Python; exits if a step is wrong."""
    pasts = [end - new for new, end in zip(load.news, load.contexts, strict=True)]
    inputs = PrefillInputs(pools, SHAPE, load.news, pasts)
    tables = inputs.tables.cpu().numpy()
    batch = ladder_batch(load.news, load.contexts, load.num_prompts, tables, SHAPE.block_size)
    for name, error in step_errors(batch, inputs.q, inputs.k_cache[0], inputs.v_cache[0]).items():
        if error > TOLERANCE[SHAPE.dtype]:
            raise SystemExit(f"{name} is wrong on {load.name} by {error:.1e}: nothing more was timed")

    def calls(attend: Attend) -> Calls:
        caches = [*zip(inputs.k_cache, inputs.v_cache, strict=True)][:MAX_LAYERS]
        return [partial(attend, inputs.out, inputs.q, k, v, batch) for k, v in caches]

    rows: list[Row] = []
    for name, attend in STEPS.items():
        graph, stream = time_graph(calls(attend)), time_stream(calls(attend)[0])
        microseconds = {"median_us": graph.median_us, "low_us": graph.low_us, "high_us": graph.high_us,
                        "from_python_us": stream.median_us}  # fmt: skip
        rows.append({"load": load.name, "step": name, "kv_bytes": inputs.kv_bytes,
                     **{key: round(time, 2) for key, time in microseconds.items()}})  # fmt: skip
        print(f"{load.name} | {name} | {graph} | {stream.median_us:.0f} us from Python", flush=True)
    torch.cuda.empty_cache()
    return rows
