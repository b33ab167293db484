"""Draws tokens from logits on the GPU: a launch wrapper."""

import math
from typing import Any

import numpy as np

from testbed.kernels.launch.compile import load
from testbed.kernels.launch.launch import HALF, Launch, at_once, check, pointers

THREADS = 1024  # of a draw


def bind_draw_tokens(
    tokens: Any, logits: Any, rows: Any, numbers: Any, *, temperature: float
) -> Launch:
    """Draw a token of a row of logits [num_rows, vocab_size], which may be strided, for each number
    from 0 to 1: the first whose probability and those of all lower ids sum to more than the number.

    tokens, rows: int64 [num_draws]; numbers: float32 [num_draws]. Sums are float32: a number as
    near to a sum as their rounding may give the next token with a probability.
    """
    values = check("logits", logits, (None, None), (*HALF, "float32"), strided_dims=1)
    draws = check("tokens", tokens, (None,), ("int64",)).shape
    check("rows", rows, draws, ("int64",))
    check("numbers", numbers, draws, ("float32",))
    word = 4 if values.dtype == "float32" else 2
    kernel = load("sample.cu", "draw_tokens", WORD=word, BF16=values.bf16)
    sizes = np.int64(values.strides[0]), np.int32(values.shape[1])
    scale = np.float32(math.log2(math.e) / temperature)
    return Launch(kernel, draws, THREADS, (*pointers(tokens, logits, rows, numbers), *sizes, scale))


draw_tokens = at_once(bind_draw_tokens)
