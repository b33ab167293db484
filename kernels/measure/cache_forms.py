"""The times of `testbed gpu measure cache-forms`: decode and prefill on caches of e4m3 and with a
window, each beside the same kernel on another cache and torch's attention, in one run.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from testbed.kernels.measure.bench_inputs import DecodeInputs, Pools, PrefillInputs
from testbed.kernels.measure.bench_kernels import GQA, MHA, SMALL
from testbed.kernels.measure.timing import Measurement, time_graph
from testbed.kernels.verify.reference import PLAIN, Form, Shape
from testbed.kernels.verify.verify_attention import verify

FP8, WINDOW = Form(fp8=True), 1024
WINDOWED, WINDOWED_FP8 = Form(window=WINDOW), Form(fp8=True, window=WINDOW)


class FormCase(NamedTuple):
    """A batch of `batch` equal sequences of `tokens`, in a cache of this form; the base reads
    base_tokens of a cache of base_form. goal: the largest ratio of both times; None: there is none.
    """

    kind: str
    shape: Shape
    batch: int
    tokens: int
    form: Form
    base_tokens: int
    base_form: Form = PLAIN
    goal: float | None = None


def _decode_in_fp8(shape: Shape, batch: int, tokens: int, goal: float | None = None) -> FormCase:
    return FormCase("decode", shape, batch, tokens, FP8, base_tokens=tokens, goal=goal)


CASES = [
    _decode_in_fp8(GQA, batch=32, tokens=1024),
    _decode_in_fp8(GQA, batch=32, tokens=4096, goal=0.60),
    _decode_in_fp8(GQA, batch=32, tokens=16384, goal=0.60),
    _decode_in_fp8(GQA, batch=8, tokens=8192),
    _decode_in_fp8(GQA, batch=1, tokens=16384),
    _decode_in_fp8(MHA, batch=32, tokens=1024),
    _decode_in_fp8(SMALL, batch=32, tokens=1024),
    *(
        FormCase("decode", GQA, 32, tokens, WINDOWED, base_tokens=WINDOW, goal=1.10)
        for tokens in (1024, 4096, 16384)
    ),
    FormCase("decode", GQA, 32, 4096, WINDOWED_FP8, base_tokens=WINDOW, base_form=FP8, goal=1.10),
    FormCase("prefill", GQA, 1, 4096, FP8, base_tokens=4096),
    FormCase("prefill", GQA, 4, 1024, FP8, base_tokens=1024),
    *(
        FormCase("prefill", GQA, 1, tokens, windowed, base_tokens=tokens, base_form=base)
        for tokens in (4096, 16384)
        for windowed, base in ((WINDOWED, PLAIN), (WINDOWED_FP8, FP8))
    ),
]


def rows() -> Iterator[Sequence[Any]]:
    """Check all kernels, then time the cases; base and torch's attention on as many tokens right
    before each. A row has microseconds, the ratio to the time of the kernel in `base`, and the goal
    of that ratio.
    """
    if not verify(partial(print, file=sys.stderr)):
        raise SystemExit("a kernel disagrees with its reference: nothing was timed")
    pools = Pools(12 << 30)
    for case in CASES:
        yield _row(case, pools)


def _row(case: FormCase, pools: Pools) -> Sequence[Any]:
    make: Callable[..., DecodeInputs | PrefillInputs] = (
        DecodeInputs if case.kind == "decode" else PrefillInputs
    )
    base_inputs = make(pools, case.shape, [case.base_tokens] * case.batch)
    theirs, base = time_graph(base_inputs.sdpa()), time_graph(base_inputs.paged(case.base_form))
    del base_inputs
    own = time_graph(make(pools, case.shape, [case.tokens] * case.batch).paged(case.form))
    torch.cuda.empty_cache()
    ratio = own.median_us / base.median_us
    type_of_cache, type_of_base = (
        "e4m3" if form.fp8 else "fp16" for form in (case.form, case.base_form)
    )
    return (
        case.kind,
        f"{case.shape.num_heads}/{case.shape.num_kv_heads}",
        case.shape.head_size,
        case.batch,
        case.tokens,
        type_of_cache,
        case.form.window or "",
        own.median_us,
        own.low_us,
        own.high_us,
        f"{type_of_base} {case.batch}x{case.base_tokens}",
        base.median_us,
        theirs.median_us,
        ratio,
        case.goal or "",
        "" if case.goal is None else ratio <= case.goal,
    )


COLUMNS = (
    "kind,heads,head_size,batch,tokens,cache,window,"
    "median_us,low_us,high_us,base,base_us,torch_us,ratio,goal,met"
)
MEASUREMENT = Measurement(COLUMNS, rows)
