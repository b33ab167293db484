"""Beam search by the model's scores: log-probabilities are summed, and the best k of k x vocabulary survive."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from testbed.sched.beams import Replacement, pairs

Best = list[tuple[int, float]]  # the best next tokens of one candidate, in order, and their log-probabilities


@dataclass(slots=True)
class Beams:
    """The candidates of one request: `totals` are log-probabilities; `held` has the results of recompute so far."""

    totals: list[float]
    held: dict[int, Best] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Survivors:
    """The result of a step: the parent, the new token and the new total of each candidate."""

    parents: tuple[Replacement, ...]
    tokens: list[int]
    totals: list[float]


def best_of(logits: Tensor, k: int) -> list[Best]:
    """The best k tokens of every row of logits [num_rows, vocab_size]; ties by the lower id."""
    scores = torch.log_softmax(logits.float(), dim=1)
    top = torch.topk(scores, min(k + 1, scores.shape[1]), dim=1)
    values, tokens = top.values, top.indices
    if k < scores.shape[1] and bool((values[:, k] == values[:, k - 1]).any()):  # a tie at the cut
        values, tokens = torch.sort(scores, dim=1, descending=True, stable=True)
    rows = zip(tokens[:, :k].tolist(), values[:, :k].tolist(), strict=True)
    return [sorted(zip(*row, strict=True), key=lambda pair: (-pair[1], pair[0])) for row in rows]


def first_candidates(best: Best) -> Survivors:
    """The candidates after the prompt: its k best next tokens."""
    return Survivors((), [token for token, _ in best], [score for _, score in best])


def survive(totals: list[float], best: list[Best]) -> Survivors:
    """One step: the best k of all continuations; ties by lower parent, then lower token.

    A parent's first continuation keeps its index; the others take the indexes of candidates that did not survive.
    """
    k = len(totals)
    ahead = [(-(totals[parent] + score), parent, token) for parent, one in enumerate(best) for token, score in one]
    chosen = sorted((parent, token, -score) for score, parent, token in sorted(ahead)[:k])
    replaced = pairs(tuple(parent for parent, _, _ in chosen))
    free = iter([child for _, child in replaced])
    tokens, reached, seen = [0] * k, [0.0] * k, set[int]()
    for parent, token, score in chosen:
        place = next(free) if parent in seen else parent
        seen.add(parent)
        tokens[place], reached[place] = token, score
    return Survivors(replaced, tokens, reached)
