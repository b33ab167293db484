"""Whole batches that start and end together: measured and predicted latencies, as lines and as a table."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from testbed.cost.model import CostModel, Work

MS = 1e-9  # of a picosecond
WITHIN = 0.20
FEWEST_ROWS = 10  # that separate the three shares of the missing time
LARGEST_BATCH = 32  # of decode steps that are judged; larger ones are prompts more than steps

CostOfBatch = Callable[["Batch"], CostModel]


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


class Predicted(NamedTuple):
    """Milliseconds of the prompts, which yield the first output token, and of the decode steps after them."""

    prompts_ms: float
    steps_ms: float

    @property
    def total_ms(self) -> float:
        """The whole batch."""
        return self.prompts_ms + self.steps_ms


class Step(NamedTuple):
    """A decode step from the difference of two batches; the predicted difference of their prompts is subtracted."""

    batch: Batch
    shorter: Batch
    measured_ms: float
    predicted_ms: float

    @property
    def error(self) -> float:
        """Relative."""
        return self.predicted_ms / self.measured_ms - 1

    @property
    def is_decoding(self) -> bool:
        """Whether the two differ by fewer prompt tokens than output tokens."""
        return self.batch.input_len - self.shorter.input_len < self.batch.output_len - self.shorter.output_len


def predict(cost: CostModel, batch: Batch) -> Predicted:
    """One iteration for all prompts, each computed once, then one for each further token of every beam."""
    size, num_stored = batch.batch_size, batch.input_len
    prompts = cost.iteration(Work(prefill=((num_stored, 0),) * size, num_requests=size))
    lengths, seqs = range(num_stored + 1, num_stored + batch.output_len), size * batch.beam_width
    steps = sum(cost.iteration(Work(seqs, seqs * n, n, num_requests=size)) for n in lengths)
    return Predicted(prompts * MS, steps * MS)


def steps(measured_ms: Mapping[Batch, float], predicted: Mapping[Batch, Predicted]) -> list[Step]:
    """A step for each batch that has a partner with fewer output tokens, and a prompt that is not longer."""
    found = []
    for batch in measured_ms:
        shorter = partner(batch, list(measured_ms))
        if shorter is None:
            continue
        prompts_ms = predicted[batch].prompts_ms - predicted[shorter].prompts_ms
        count = batch.output_len - shorter.output_len
        took = (measured_ms[batch] - measured_ms[shorter] - prompts_ms) / count
        step_ms = (predicted[batch].steps_ms - predicted[shorter].steps_ms) / count
        found.append(Step(batch, shorter, took, step_ms))
    return found


def partner(batch: Batch, others: Sequence[Batch]) -> Batch | None:
    """Of the same model, degree and size, with fewer output tokens: the one whose prompts are nearest, not longer."""
    alike = [b for b in others if b._replace(input_len=batch.input_len, output_len=batch.output_len) == batch]
    near = [b for b in alike if b.output_len < batch.output_len and b.input_len <= batch.input_len]
    return max(near, key=lambda b: (b.input_len, b.output_len), default=None)


def median_error(errors: Sequence[float]) -> float:
    """The median of their sizes."""
    return median(map(abs, errors))


def missing_layer_s(found: Sequence[Step], num_layers: Mapping[str, int]) -> dict[int, float]:
    """Seconds a layer that steps take beyond their cost, by degree: the median over steps that mostly decode."""
    by_degree: dict[int, list[float]] = {}
    for step in found:
        if step.is_decoding and step.batch.batch_size <= LARGEST_BATCH:
            gap_ms = step.measured_ms - step.predicted_ms
            by_degree.setdefault(step.batch.tensor_parallel, []).append(gap_ms / 1e3 / num_layers[step.batch.model])
    return {degree: median(gaps) for degree, gaps in sorted(by_degree.items())}


def batches(table: pd.DataFrame) -> list[Batch]:
    """The batch of each row; a column that is not there has its default, and must have one."""
    kinds = {name: str if kind in (str, "str") else int for name, kind in Batch.__annotations__.items()}
    known = [name for name in Batch._fields if name in table]
    typed = table[known].astype({name: kinds[name] for name in known})
    return [Batch(**row) for row in typed.to_dict("records")]


def report(measured: Mapping[Batch, float], predicted: Mapping[Batch, Predicted], found: Sequence[Step]) -> list[str]:
    """Errors by model and number of GPUs, worst rows, and rows without a measurement."""
    judged = [step for step in found if step.batch.batch_size <= LARGEST_BATCH]
    errors = {batch: predicted[batch].total_ms / ms - 1 for batch, ms in measured.items()}
    same = sum(step.batch.input_len == step.shorter.input_len for step in judged)
    lines = [
        f"decode steps, batch up to {LARGEST_BATCH}: {len(judged)} differences of rows, {same} of them of equal "
        "prompts; of the others the predicted difference of prompts is subtracted",
        *by_kind("  step, prompts differ by less than outputs", {s.batch: s.error for s in judged if s.is_decoding}),
        *by_kind("  step, prompts differ by more", {s.batch: s.error for s in judged if not s.is_decoding}),
        *([f"  all steps: median {median_error([s.error for s in judged]):.1%}"] if judged else []),
        *by_kind("whole batch", errors),
        *left_over(measured, predicted),
        f"all {len(errors)} batches: median {median_error(list(errors.values())):.1%}, "
        f"{sum(abs(error) <= WITHIN for error in errors.values()) / len(errors):.1%} within 20%",
    ]
    far = sorted((error, batch) for batch, error in errors.items() if abs(error) > WITHIN)
    lines += [f"  beyond 20%: {named(batch)}: {error:+.0%}" for error, batch in far]
    unseen = [batch for batch in predicted if batch not in measured]
    return lines + [f"not measured: {named(batch)}: {predicted[batch].total_ms:.0f} ms" for batch in unseen]


def by_kind(what: str, errors: Mapping[Batch, float]) -> list[str]:
    """A line for each model and number of GPUs; where cards differ, for each card and batch size too."""
    kinds: dict[str, list[float]] = {}
    for batch in sorted(errors, key=lambda one: (one.device, one.batch_size if one.device else 0)):
        kinds.setdefault(kind_of(batch), []).append(errors[batch])
    return [
        f"{what}, {kind}: median {median(of):+.1%}, of sizes {median_error(of):.1%}, {min(of):+.0%} to {max(of):+.0%} "
        f"({len(of)} rows)"
        for kind, of in kinds.items()
    ]


def kind_of(batch: Batch) -> str:
    """Model and number of GPUs; where cards differ, card and batch size too."""
    kind = f"{batch.model} on {batch.tensor_parallel}"
    return f"{kind} {batch.device}, batch {batch.batch_size}" if batch.device else kind


def named(batch: Batch) -> str:
    """The batch for people."""
    size = "" if batch.device else f", batch {batch.batch_size}"
    return f"{kind_of(batch)}{size}, {batch.input_len} + {batch.output_len} tokens"


def left_over(measured: Mapping[Batch, float], predicted: Mapping[Batch, Predicted]) -> list[str]:
    """What batches of a kind take beyond their cost: so much each, by prompt token and by step (least squares)."""
    by_kind: dict[str, list[Batch]] = {}
    for batch in measured:
        by_kind.setdefault(kind_of(batch), []).append(batch)
    lines = []
    for kind, of in by_kind.items():
        counts = np.array([(1.0, b.batch_size * b.input_len, b.output_len - 1) for b in of])
        gaps = np.array([measured[b] - predicted[b].total_ms for b in of])
        (fixed, token, step), _, rank, _ = np.linalg.lstsq(counts, gaps, rcond=None)
        if rank == len(counts[0]) and len(of) >= FEWEST_ROWS:
            shares = f"{fixed:+.0f} ms, {1e3 * token:+.1f} us a prompt token, {step:+.2f} ms a step"
            lines.append(f"measured beyond its cost, {kind}: {shares} ({len(of)} rows)")
    return lines


def as_table(
    measured: Mapping[Batch, float], predicted: Mapping[Batch, Predicted], found: Sequence[Step]
) -> pd.DataFrame:
    """A row for each batch; its decode step where it has a partner."""
    of = {step.batch: step for step in found}
    rows: list[dict[str, Any]] = []
    for batch, prediction in predicted.items():
        ms, step = measured.get(batch), of.get(batch)
        whole = {"latency_ms": ms, "predicted_ms": prediction.total_ms, "predicted_prompts_ms": prediction.prompts_ms}
        whole["error"] = None if ms is None else prediction.total_ms / ms - 1
        less = {} if step is None else {"step_ms": step.measured_ms, "predicted_step_ms": step.predicted_ms}
        rows.append({**batch._asdict(), **whole, **less})
    return pd.DataFrame(rows).round(4)
