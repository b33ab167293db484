"""The engine's fast path against its plain one: a model's real shape, random weights in bf16.

The plain path, the debug mode, launches kernel after kernel, each iteration when the results of the
one before are in. The fast paths replay CUDA graphs: one launches an iteration while another runs,
others verify drafts, which n-grams or the model itself has proposed. A matrix product of another
size may round in another way, as it does between two batch sizes of the plain path; so a sequence
may take another token if two are almost equally likely.

The tolerance is fixed before a fast path runs: if no logit differs by more than d between two
batch sizes, then two paths that round as differently choose the same token wherever the best two
logits are more than 2 d apart.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import nan
from typing import NamedTuple

import torch
from torch import Tensor

from testbed.core.shapes import read_model
from testbed.kernels.engine.architecture import Architecture, of_spec
from testbed.kernels.engine.random_weights import random_weights
from testbed.kernels.engine.verify.scenarios import Row, Scenario, record
from testbed.kernels.engine.weights import Weights
from testbed.memory.paged.paged import Paged
from testbed.speculation.draft_model import DraftModel
from testbed.speculation.ngram import NGram

GRAPHS, SMALL_BATCH, NUM_DRAFTS = 64, 5, 3
Logits = dict[tuple[int, ...], Tensor]  # by the tokens before


class Comparison(NamedTuple):
    """choices: places at which both paths had the same tokens before; differing: those at which
    they chose another token next, and largest_margin: how far apart the plain path's best two
    logits were at one of them. difference: the largest of a logit, if it is to be within the
    tolerance too.
    """

    choices: int
    differing: int
    largest_margin: float
    tolerance: float
    difference: float | None = None

    @property
    def is_right(self) -> bool:
        """True if the paths differ only if the plain one could have chosen either; a logit that is
        no number is wrong.
        """
        largest = (self.largest_margin, self.difference or 0.0)
        return self.choices > 0 and all(value <= self.tolerance for value in largest)

    def __str__(self) -> str:
        margin = f", if the best two logits are at most {self.largest_margin:.4f} apart"
        logits = f"; logits differ by at most {self.difference or 0.0:.3g}"
        return (
            f"{self.choices} choices with the same tokens before, {self.differing} differ"
            f"{margin if self.differing else ''}{'' if self.difference is None else logits}; "
            f"tolerance {self.tolerance:.3g}: {'right' if self.is_right else 'WRONG'}"
        )


def verify_launches(name: str) -> bool:
    """Compare the paths on a shipped model; prints the results, and returns whether all are
    right.
    """
    arch = of_spec(read_model(name))
    weights = random_weights(arch, 0, "cuda", torch.bfloat16)
    is_right = True
    for way, compared in compare(arch, weights):
        print(f"{name}, {way}: {compared}", flush=True)
        is_right &= compared.is_right
    return is_right


def compare(arch: Architecture, weights: Weights) -> Iterator[tuple[str, Comparison]]:
    """Each fast path by name, beside the plain one."""
    scenario = Scenario("plain", partial(Paged, block_size=16), below=0, ahead=True)
    plain = by_tokens(record(scenario, arch, weights))
    small = by_tokens(record(replace(scenario, max_num_seqs=SMALL_BATCH), arch, weights))
    tolerance = 2 * largest_difference(plain, small)
    for way, speculation in (
        ("launched ahead", None),
        ("drafts by n-grams", NGram(NUM_DRAFTS, lookup_min=1, lookup_max=3)),
        ("drafts by the model itself", DraftModel(NUM_DRAFTS, arch.spec)),
    ):
        fast = replace(scenario, speculation=speculation)
        yield way, comparison(plain, by_tokens(record(fast, arch, weights, GRAPHS)), tolerance)


def by_tokens(rows: list[Row]) -> Logits:
    """Logits by the tokens before."""
    return dict(rows)


def largest_difference(first: Logits, second: Logits) -> float:
    """The largest difference of a logit between rows with the same tokens before; NaN if one of
    them is.
    """
    common = first.keys() & second.keys()
    return _largest([(first[key].float() - second[key].float()).abs().max() for key in common])


def _largest(values: Iterable[Tensor | float]) -> float:
    """The largest of them, or 0; NaN if one is, which Python's max may pass over."""
    return float(torch.tensor([0.0, *values]).max())


def comparison(plain: Logits, fast: Logits, tolerance: float) -> Comparison:
    """Positions at which both had the same tokens before: what they chose next."""
    common = plain.keys() & fast.keys()
    margins = [
        margin_of(plain[key]) if not fast[key].isnan().any() else nan
        for key in common
        if plain[key].argmax() != fast[key].argmax() or fast[key].isnan().any()
    ]
    return Comparison(len(common), len(margins), _largest(margins), tolerance)


def margin_of(logits: Tensor) -> float:
    """The distance between the best two."""
    best, second = torch.topk(logits.float(), 2).values.tolist()
    return float(best - second)
