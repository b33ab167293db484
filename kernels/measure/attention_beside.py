"""Our attention kernels beside others: prefill beside torch's, decode beside FlashInfer's.

`testbed gpu measure attention-beside` times both in turn, several rounds of each, and prints the
medians of the rounds. Prefill is compared with torch's scaled dot product attention, which reads
contiguous memory; decode with every kernel for it that FlashInfer has on this GPU, whose results on
the same caches of fp16 must be ours; decodes that share a prefix with FlashInfer's cascade too
(ours reads the prefix once for all if that pays). A
case without a time is one that the kernel refuses, with the reason on stderr. FlashInfer is no
dependency of this project: install flashinfer-python for kinds decode and shared.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from testbed.core.errors import InputError
from testbed.kernels.measure.bench_inputs import Calls, DecodeInputs, Pools, PrefillInputs
from testbed.kernels.measure.bench_kernels import GQA, MHA, SMALL
from testbed.kernels.measure.flashinfer_calls import FlashInfer
from testbed.kernels.measure.timing import Measurement, time_graph
from testbed.kernels.verify.reference import Shape

WIDE = Shape(64, 8, 128)
PROMPTS = ((1, 1024), (1, 2048), (1, 4096), (4, 1024), (16, 161), (1, 16384))
Row = tuple[str | int | float, ...]
ROUNDS = 5
TOLERANCE = 5e-3  # of the norm: two results of fp16


class Case(NamedTuple):
    """A batch of sequences of `tokens` tokens, the first `prefix` of which they share."""

    kind: str
    shape: Shape
    batch: int
    tokens: int
    prefix: int = 0


PREFILLS = [
    *(Case("prefill", shape, *prompts) for shape, prompts in product((MHA, GQA), PROMPTS)),
    Case("prefill", SMALL, 4, 1024),
    Case("prefill", WIDE, 1, 4096),
]
DECODES = [
    Case("decode", *sizes)
    for sizes in product((MHA, GQA, WIDE, SMALL), (1, 8, 32, 128), (256, 1024, 4096))
]
OWN = 256  # tokens after a shared prefix
SHARED = [
    Case("shared", shape, batch, prefix + OWN, prefix)
    for shape, batch, prefix in product((MHA, GQA), (8, 32, 128), (1024, 4096))
]
KINDS = {"prefill": PREFILLS, "decode": DECODES, "shared": SHARED}


def rows(kinds: Sequence[str]) -> Iterator[Row]:
    """A row for each case and each other kernel."""
    library = FlashInfer() if {"decode", "shared"} & set(kinds) else None
    pools = Pools(12 << 30)
    for case in (case for kind in kinds for case in KINDS[kind]):
        if library is None or case.kind == "prefill":
            inputs = PrefillInputs(pools, case.shape, [case.tokens] * case.batch)
            yield *_about(case), "torch", *_in_turn(inputs.paged(), inputs.sdpa()), ""
        else:
            yield from _beside_flashinfer(case, decode_inputs(pools, case), library)
        torch.cuda.empty_cache()


def decode_inputs(pools: Pools, case: Case) -> DecodeInputs:
    """The inputs of a decode; all block tables begin with the blocks of the prefix."""
    inputs = DecodeInputs(pools, case.shape, [case.tokens] * case.batch)
    blocks = case.prefix // case.shape.block_size
    inputs.tables[:, :blocks] = inputs.tables[0, :blocks].clone()
    return inputs


def _beside_flashinfer(case: Case, inputs: DecodeInputs, library: FlashInfer) -> Iterator[Row]:
    ours = inputs.sharing(case.prefix)
    ours[0]()
    for name, make in library.kernels(inputs, case.prefix // case.shape.block_size).items():
        try:
            theirs = make()
            differs = difference(inputs.out[0], theirs[0]())
        except (RuntimeError, ValueError, NotImplementedError) as refusal:
            print(f"{name}, {case}: {str(refusal).splitlines()[0]}", file=sys.stderr)
            yield *_about(case), name, "", "", "", ""
            continue
        if not differs <= TOLERANCE:
            raise InputError(key=name, value=case, problem=f"differs from ours by {differs:.2e}")
        yield *_about(case), name, *_in_turn(ours, theirs), f"{differs:.1e}"


def _about(case: Case) -> Row:
    heads = f"{case.shape.num_heads}/{case.shape.num_kv_heads}"
    return case.kind, heads, case.shape.head_size, case.batch, case.tokens, case.prefix


def _in_turn(ours: Calls, theirs: Calls) -> tuple[float, float, float]:
    """Microseconds of both, and their ratio."""
    times = [[time_graph(calls).median_us for calls in (ours, theirs)] for _ in range(ROUNDS)]
    own_us, other_us = np.median(times, axis=0).tolist()
    return own_us, other_us, own_us / other_us


def difference(ours: Tensor, theirs: Any) -> float:
    """The norm of the difference of two results over that of the second."""
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


COLUMNS = "kind,heads,head_size,batch,tokens,prefix,other,ours_us,other_us,ratio,differs"
MEASUREMENT = Measurement(COLUMNS, rows)
