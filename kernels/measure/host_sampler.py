"""Host time of the 2023 system's sampler, which samples one sequence group after the other and
waits for each token.

`testbed gpu measure sampler` times its loop over the groups of a decode step, in the order of torch
operations of vLLM 0.1: a group takes its rows; random sampling draws a token for each sequence,
beam search adds the scores so far and takes the best of all candidates; the log probability of each
token is fetched by itself. Softmax and logarithm of all groups together are a kernel's time and
left out. Prints microseconds of the loop by kind of sampling and number of groups.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import torch

from testbed.kernels.measure.timing import Measurement, Timing

VOCAB_SIZE = 50_272  # OPT's
NUM_GROUPS = (8, 32, 64)
REPEATS = 61


class Kind(NamedTuple):
    """The sampling of each group: `width` sequences, drawn at random or kept by beam search."""

    name: str  # parallel, or beam, whose candidates of all sequences compete
    width: int


KINDS = (
    Kind("parallel", 1),
    *(Kind(name, width) for name in ("parallel", "beam") for width in (2, 4, 6)),
)


def sample(
    kind: Kind, num_groups: int, probs: torch.Tensor, logprobs: torch.Tensor
) -> list[tuple[int, int, float]]:
    """Parent, token and log probability of every sequence; both tensors are [num_groups * width,
    vocabulary].
    """
    sampled = []
    for first in range(0, num_groups * kind.width, kind.width):
        rows = slice(first, first + kind.width)
        prob, logprob = probs[rows], logprobs[rows]
        if kind.name == "beam":
            parents, tokens = best_of(logprob, [-1.0] * kind.width)
        else:  # each sequence continues with a token drawn from its distribution
            drawn = torch.multinomial(prob, num_samples=1, replacement=True)
            parents, tokens = list(range(kind.width)), drawn.squeeze(dim=-1).tolist()
        for seq in range(kind.width):
            logprob[seq]  # the read for the most probable tokens, of which none is requested
        for parent, token in zip(parents, tokens, strict=True):
            sampled.append((first + parent, token, logprob[parent, token].item()))
    return sampled


def best_of(logprob: torch.Tensor, scores: Sequence[float]) -> tuple[list[int], list[int]]:
    """The best candidates of a group: a surviving sequence keeps its first one, the others take the
    rest.
    """
    total = logprob + torch.tensor(scores, dtype=torch.float, device=logprob.device).unsqueeze(
        dim=1
    )
    _, candidates = torch.topk(total.flatten(), len(scores))
    kept: dict[int, tuple[int, int]] = {}
    left = []
    for candidate in candidates.tolist():
        parent, token = divmod(candidate, logprob.size(-1))
        if parent in kept:
            left.append((parent, token))
        else:
            kept[parent] = parent, token
    chosen = [kept[seq] if seq in kept else left.pop() for seq in range(len(scores))]
    return [parent for parent, _ in chosen], [token for _, token in chosen]


def rows() -> Iterator[tuple[str | float, ...]]:
    """A row for each kind of sampling and number of groups; all cases take turns, for a host
    changes its clock.
    """
    cases = []
    for kind, num_groups in product(KINDS, NUM_GROUPS):
        logits = torch.randn(num_groups * kind.width, VOCAB_SIZE, device="cuda")
        probs = torch.softmax(logits, dim=-1, dtype=torch.float)
        cases.append((kind, num_groups, probs, torch.log(probs)))
    samples: list[list[float]] = [[] for _ in cases]
    for _ in range(REPEATS):
        for case, times in zip(cases, samples, strict=True):
            torch.cuda.synchronize()
            start = time.perf_counter()
            sample(*case)
            times.append(1e6 * (time.perf_counter() - start))
    for (kind, num_groups, *_), times in zip(cases, samples, strict=True):
        yield kind.name, kind.width, num_groups, *Timing.of(times[1:])  # the first loads kernels


MEASUREMENT = Measurement("kind,width,groups,median_us,p10_us,p90_us", rows)
