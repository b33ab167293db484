"""Whole batches that start and end together, and how long they took: what was measured beside what prices say."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from testbed.cost.model import CostModel, Work

MS = 1e-9  # of a picosecond
WITHIN = 0.20
LARGEST_BATCH = 32  # of decode steps that are judged; larger ones are prompts more than steps

Prices = Callable[["Batch"], CostModel]


class Batch(NamedTuple):
    """batch_size prompts of input_len tokens each, and output_len tokens generated for each of them."""

    model: str
    tensor_parallel: int
    batch_size: int
    input_len: int
    output_len: int


class Predicted(NamedTuple):
    """Milliseconds of the prompts, which yield the first output token, and of the decode steps after them."""

    prompts_ms: float
    steps_ms: float

    @property
    def total_ms(self) -> float:
        """The whole batch."""
        return self.prompts_ms + self.steps_ms


class Step(NamedTuple):
    """A decode step from the difference of two batches; the difference of their prompts is taken off as priced."""

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
    """One iteration for all prompts, then one for each further token."""
    _, _, size, stored, output_len = batch
    prompts = cost.iteration(Work(prefill=((stored, 0),) * size, num_requests=size))
    lengths = range(stored + 1, stored + output_len)
    steps = sum(cost.iteration(Work(size, size * n, n, num_requests=size)) for n in lengths)
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
        said = (predicted[batch].steps_ms - predicted[shorter].steps_ms) / count
        found.append(Step(batch, shorter, took, said))
    return found


def partner(batch: Batch, others: Sequence[Batch]) -> Batch | None:
    """Of the same model, degree and size, with fewer output tokens: the one whose prompts are nearest, not longer."""
    near = [b for b in others if b[:3] == batch[:3] and b.output_len < batch.output_len]
    near = [b for b in near if b.input_len <= batch.input_len]
    return max(near, key=lambda b: (b.input_len, b.output_len), default=None)


def median_error(errors: Sequence[float]) -> float:
    """The median of their sizes."""
    return median(map(abs, errors))


def share_within(errors: Sequence[float]) -> float:
    """How many are at most WITHIN off."""
    return sum(abs(error) <= WITHIN for error in errors) / len(errors)


def missing_layer_s(found: Sequence[Step], num_layers: Mapping[str, int]) -> dict[int, float]:
    """Seconds a layer that steps take beyond their price, by degree: the median over steps that tell of decoding."""
    by_degree: dict[int, list[float]] = {}
    for step in found:
        if step.is_decoding and step.batch.batch_size <= LARGEST_BATCH:
            gap_ms = step.measured_ms - step.predicted_ms
            by_degree.setdefault(step.batch.tensor_parallel, []).append(gap_ms / 1e3 / num_layers[step.batch.model])
    return {degree: median(gaps) for degree, gaps in sorted(by_degree.items())}
