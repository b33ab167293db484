"""Our attention kernels beside others: prefill beside torch's, decode beside FlashInfer's.

`testbed gpu measure attention-beside` times both in turn, several rounds of each, and prints the
medians of the rounds. Both read the same caches of fp16 and must agree. Prefill is compared with
torch's scaled dot product attention on contiguous memory, decode with every kernel for it that
FlashInfer has on this GPU, and decodes that share a prefix with FlashInfer's cascade too; a case
without a time is one that the kernel refuses, with the reason on stderr. FlashInfer is no
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
from testbed.kernels.measure.flashinfer_calls import FlashInfer, Makers
from testbed.kernels.measure.timing import Measurement, time_graph
from testbed.kernels.verify.reference import Shape

WIDE = Shape(64, 8, 128)
PROMPTS = ((1, 1024), (1, 2048), (1, 4096), (4, 1024), (16, 161), (1, 16384))
ROUNDS = 5
TOLERANCE = 5e-3  # of the norm: two results of fp16


class Case(NamedTuple):
    """A batch of equal sequences of so many tokens, the first `prefix` of which they share."""

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


def rows(kinds: Sequence[str]) -> Iterator[tuple[str | int | float, ...]]:
    """A row for each case and each other kernel."""
    library = FlashInfer() if {"decode", "shared"} & set(kinds) else None
    pools = Pools(12 << 30)
    for case in (case for kind in kinds for case in KINDS[kind]):
        if library is None or case.kind == "prefill":
            prefill = PrefillInputs(pools, case.shape, [case.tokens] * case.batch)
            yield from _beside(case, prefill.paged(), prefill.out, {"torch": prefill.sdpa})
        else:
            inputs = decode_inputs(pools, case)
            others = library.kernels(inputs, case.prefix // case.shape.block_size)
            yield from _beside(case, inputs.paged(), inputs.out[0], others)
        torch.cuda.empty_cache()


def decode_inputs(pools: Pools, case: Case) -> DecodeInputs:
    """The inputs of a decode; all block tables begin with the blocks of the prefix."""
    inputs = DecodeInputs(pools, case.shape, [case.tokens] * case.batch)
    blocks = case.prefix // case.shape.block_size
    inputs.tables[:, :blocks] = inputs.tables[0, :blocks].clone()
    return inputs


def _beside(
    case: Case, ours: Calls, out: Tensor, others: Makers
) -> Iterator[tuple[str | int | float, ...]]:
    """out: of the first of our calls."""
    sizes = f"{case.shape.num_heads}/{case.shape.num_kv_heads}", case.shape.head_size, *case[2:]
    ours[0]()
    expected = out.float()
    for name, make in others.items():
        try:
            theirs = make()
            error = difference(expected, theirs[0]())
        except (RuntimeError, ValueError, NotImplementedError) as refusal:
            print(f"{name}, {case}: {str(refusal).splitlines()[0]}", file=sys.stderr)
            yield case.kind, *sizes, name, "", "", "", ""
            continue
        if not error <= TOLERANCE:
            raise InputError(key=name, value=case, problem=f"differs from ours by {error:.2e}")
        times = [[time_graph(calls).median_us for calls in (ours, theirs)] for _ in range(ROUNDS)]
        own_us, other_us = np.median(times, axis=0).tolist()
        yield case.kind, *sizes, name, own_us, other_us, own_us / other_us, f"{error:.1e}"


def difference(expected: Tensor, other: Any) -> float:
    """The norm of the difference over the norm: of results by token, or by sequence and head."""
    if other.dim() == 4:
        other = other.transpose(1, 2).reshape(expected.shape)
    return float((other.float() - expected).norm() / expected.norm())


COLUMNS = "kind,heads,head_size,batch,tokens,prefix,other,ours_us,other_us,ratio,differs"
MEASUREMENT = Measurement(COLUMNS, rows)
