"""Whole batches that start and end together: a table of measured and predicted latencies, and lines on its errors.

The columns of the table are the fields of Batch and latency_ms, which is empty where nobody measured.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from testbed.cost.model import CostModel, Work

MS = 1e-9  # of a picosecond
WITHIN = 0.20
FEWEST_ROWS = 10  # that separate the three shares of the missing time
LARGEST_BATCH = 32  # of decode steps that are judged; larger ones are prompts more than steps


class Batch(NamedTuple):
    """batch_size prompts of input_len tokens each, and output_len tokens generated for each in beam_width beams.

    device: the card as its driver names it; empty where all batches are of the one that the costs are of.
    """

    model: str
    tensor_parallel: int
    batch_size: int
    input_len: int
    output_len: int
    beam_width: int = 1
    device: str = ""


CostOfBatch = Callable[[Batch], CostModel]
FIELDS = list(Batch._fields)
ALIKE = [name for name in FIELDS if name not in ("input_len", "output_len")]


def predict(cost: CostModel, batch: Batch) -> tuple[float, float]:
    """Milliseconds of the prompts, each computed once in one iteration, and of the steps for the further tokens."""
    size, num_stored = batch.batch_size, batch.input_len
    prompts = cost.iteration(Work(prefill=((num_stored, 0),) * size, num_requests=size))
    lengths, seqs = range(num_stored + 1, num_stored + batch.output_len), size * batch.beam_width
    steps = sum(cost.iteration(Work(seqs, seqs * n, n, num_requests=size)) for n in lengths)
    return prompts * MS, steps * MS


def with_predictions(table: pd.DataFrame, cost_of: CostOfBatch) -> pd.DataFrame:
    """The table with predicted_ms, predicted_prompts_ms and error, and with the decode steps."""
    batches = [Batch(*row) for row in table[FIELDS].itertuples(index=False)]
    prompts, steps = np.array([predict(cost_of(batch), batch) for batch in batches]).T
    table = table.assign(predicted_ms=prompts + steps, predicted_prompts_ms=prompts)
    return with_steps(table.assign(error=table["predicted_ms"] / table["latency_ms"] - 1))


def with_steps(table: pd.DataFrame) -> pd.DataFrame:
    """step_ms and predicted_step_ms of each batch with a shorter one, and whether outputs differ more than prompts.

    A step is the difference of the two latencies, less the predicted difference of their prompts. The shorter batch is
    of the same kind, with fewer output tokens: the one whose prompts are nearest and not longer.
    """
    found = {}
    for _, alike in table[table["latency_ms"].notna()].groupby(ALIKE, sort=False):
        for place, batch in alike.iterrows():
            fewer = alike[(alike["output_len"] < batch["output_len"]) & (alike["input_len"] <= batch["input_len"])]
            if len(fewer):
                found[place] = _step(batch, fewer.sort_values(["input_len", "output_len"]).iloc[-1])
    columns = ["step_ms", "predicted_step_ms", "is_decoding"]
    return table.join(pd.DataFrame.from_dict(found, orient="index", columns=columns))


def _step(batch: pd.Series, shorter: pd.Series) -> tuple[float, float, bool]:
    names = ["input_len", "output_len", "latency_ms", "predicted_ms", "predicted_prompts_ms"]
    inputs, count, ms, predicted_ms, prompts_ms = (batch[name] - shorter[name] for name in names)
    return (ms - prompts_ms) / count, (predicted_ms - prompts_ms) / count, inputs < count


def report(table: pd.DataFrame) -> Iterator[str]:
    """Errors by model and number of GPUs, worst rows, and rows without a measurement."""
    measured = table[table["latency_ms"].notna()]
    steps = measured[measured["step_ms"].notna() & (measured["batch_size"] <= LARGEST_BATCH)]
    steps = steps.assign(error=steps["predicted_step_ms"] / steps["step_ms"] - 1)
    yield f"decode steps, batch up to {LARGEST_BATCH}: {len(steps)} differences of rows, less that of their prompts"
    decoding = steps["is_decoding"].astype(bool)
    yield from by_kind("  step, prompts differ by less than outputs", steps[decoding])
    yield from by_kind("  step, prompts differ by more", steps[~decoding])
    if len(steps):
        yield f"  all steps: median {steps['error'].abs().median():.1%}"
    yield from by_kind("whole batch", measured)
    yield from left_over(measured)
    sizes = measured["error"].abs()
    yield f"all {len(sizes)} batches: median {sizes.median():.1%}, {(sizes <= WITHIN).mean():.1%} within 20%"
    for _, batch in measured[sizes > WITHIN].sort_values("error").iterrows():
        yield f"  beyond 20%: {named(batch)}: {batch['error']:+.0%}"
    for _, batch in table[table["latency_ms"].isna()].iterrows():
        yield f"not measured: {named(batch)}: {batch['predicted_ms']:.0f} ms"


def by_kind(what: str, table: pd.DataFrame) -> Iterator[str]:
    """A line for each model and number of GPUs; where cards differ, for each card and batch size too."""
    size = table["batch_size"].where(table["device"] != "", 0)
    table = table.assign(size=size).sort_values(["device", "size"], kind="stable")
    for kind, rows in table.groupby(table.apply(kind_of, axis=1), sort=False) if len(table) else ():
        error, sizes = rows["error"], rows["error"].abs()
        yield (f"{what}, {kind}: median {error.median():+.1%}, of sizes {sizes.median():.1%}, "
               f"{error.min():+.0%} to {error.max():+.0%} ({len(rows)} rows)")  # fmt: skip


def kind_of(batch: pd.Series) -> str:
    """Model and number of GPUs; where cards differ, card and batch size too."""
    kind = f"{batch['model']} on {batch['tensor_parallel']}"
    return f"{kind} {batch['device']}, batch {batch['batch_size']}" if batch["device"] else kind


def named(batch: pd.Series) -> str:
    """The batch for people."""
    size = "" if batch["device"] else f", batch {batch['batch_size']}"
    return f"{kind_of(batch)}{size}, {batch['input_len']} + {batch['output_len']} tokens"


def left_over(table: pd.DataFrame) -> Iterator[str]:
    """What batches of a kind take beyond their cost: so much each, by prompt token and by step (least squares)."""
    for kind, rows in table.groupby(table.apply(kind_of, axis=1), sort=False):
        counts = np.stack([np.ones(len(rows)), rows["batch_size"] * rows["input_len"], rows["output_len"] - 1], axis=1)
        (fixed, token, step), _, rank, _ = np.linalg.lstsq(counts, rows["latency_ms"] - rows["predicted_ms"])
        if rank == 3 and len(rows) >= FEWEST_ROWS:
            shares = f"{fixed:+.0f} ms, {1e3 * token:+.1f} us a prompt token, {step:+.2f} ms a step"
            yield f"measured beyond its cost, {kind}: {shares} ({len(rows)} rows)"
