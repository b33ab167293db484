"""Attention with caches of e4m3 and with sliding windows, next to fp16 caches and torch, in one run.

A row has microseconds, the ratio to the time of the kernel in `base`, and the goal of that ratio.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from testbed.command_line import Parser
from testbed.kernels.measure.bench_inputs import PLAIN, DecodeInputs, Pools, PrefillInputs
from testbed.kernels.measure.timing import Measurement, time_graph
from testbed.kernels.verify.reference import Form, Shape
from testbed.kernels.verify.verify_attention import verify

MHA, GQA, SMALL = Shape(40, 40, 128), Shape(32, 8, 128), Shape(14, 2, 64)
FP8 = Form(True)
WINDOW = 1024
Case = tuple[str, Shape, int, int, Form, tuple[int, Form], float | None]
# (kind, shape, sequences, tokens, form, tokens and form of the base, goal of the ratio)
CASES: list[Case] = [
    *(("decode", GQA, n, length, FP8, (length, PLAIN), 0.60 if n == 32 and length > 1024 else None)
      for n, length in ((32, 1024), (32, 4096), (32, 16384), (8, 8192), (1, 16384))),
    ("decode", MHA, 32, 1024, FP8, (1024, PLAIN), None),
    ("decode", SMALL, 32, 1024, FP8, (1024, PLAIN), None),
    *(("decode", GQA, 32, length, Form(False, WINDOW), (WINDOW, PLAIN), 1.10) for length in (1024, 4096, 16384)),
    ("decode", GQA, 32, 4096, Form(True, WINDOW), (WINDOW, FP8), 1.10),
    *(("prefill", GQA, n, length, FP8, (length, PLAIN), None) for n, length in ((1, 4096), (4, 1024))),
    *(("prefill", GQA, 1, length, Form(fp8, WINDOW), (length, Form(fp8)), None)
      for length in (4096, 16384) for fp8 in (False, True)),
]  # fmt: skip


def rows(options: Namespace) -> Iterator[Sequence[Any]]:
    """Check all kernels, then time the cases; base and torch's attention on as many tokens right before each."""
    if options.rounds and not verify(options.rounds, partial(print, file=sys.stderr)):
        raise SystemExit("a kernel disagrees with its reference: nothing was timed")
    pools = Pools(12 << 30)
    for kind, shape, batch, tokens, form, (base_tokens, base_form), goal in CASES:
        base_inputs = inputs_of(pools, kind, shape, batch, base_tokens)
        theirs, base = time_graph(base_inputs.sdpa()), time_graph(base_inputs.paged(base_form))
        del base_inputs
        own = time_graph(inputs_of(pools, kind, shape, batch, tokens).paged(form))
        torch.cuda.empty_cache()
        ratio = own.median_us / base.median_us
        types = ["e4m3" if x.fp8 else "fp16" for x in (form, base_form)]
        heads = f"{shape.num_heads}/{shape.num_kv_heads}"
        yield (kind, heads, shape.head_size, batch, tokens, types[0], form.window or "", own.median_us, own.low_us,
               own.high_us, f"{types[1]} {batch}x{base_tokens}", base.median_us, theirs.median_us, ratio, goal or "",
               "" if goal is None else ratio <= goal)  # fmt: skip


def inputs_of(pools: Pools, kind: str, shape: Shape, batch: int, tokens: int) -> DecodeInputs | PrefillInputs:
    """Inputs of equal lengths."""
    return (DecodeInputs if kind == "decode" else PrefillInputs)(pools, shape, [tokens] * batch)


def add_arguments(parser: Parser) -> None:
    """Rounds of checks."""
    parser.add_argument("--rounds", type=int, default=1, help="rounds of random checks, 110 batches each; 0: none")


COLUMNS = "kind,heads,head_size,batch,tokens,cache,window,median_us,low_us,high_us,base,base_us,torch_us,ratio,goal,met"
MEASUREMENT = Measurement(__doc__, COLUMNS, rows, add_arguments)
