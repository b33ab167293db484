"""Prompts and outputs of random lengths, as `vllm bench serve` draws them."""

import math
from typing import Annotated

import numpy as np
from annotated_types import Interval

from testbed.core.errors import InputError, check_least
from testbed.core.request import Column, Rows
from testbed.core.units import NumTokens, PositiveTokens
from testbed.traces.contents import owned_ids, tokens_per_id
from testbed.traces.drawn import Drawn

Spread = Annotated[float, Interval(ge=0, lt=1)]


class RandomLengths(Drawn):
    """The data set `random` of `vllm bench serve` (release 0.33), lengths in tokens.

    input_len, output_len, prefix_len: --random-input-len, --random-output-len,
    --random-prefix-len. The ratios are --random-range-ratio for prompts and for outputs: a length
    is uniform over the whole numbers from floor(mean (1 - ratio)) to ceil(mean (1 + ratio)), an
    output at least 1. Every prompt starts with the same prefix_len tokens, and no two share what
    follows. A tokenizer that adds special tokens to a prompt leaves so many fewer to draw:
    num_special.
    """

    def __init__(
        self,
        input_len: PositiveTokens = 1024,
        output_len: PositiveTokens = 128,
        input_ratio: Spread = 0.0,
        output_ratio: Spread | None = None,
        prefix_len: NumTokens = 0,
        num_special: NumTokens = 0,
    ) -> None:
        check_least(1, input_len=input_len, output_len=output_len)
        check_least(0, prefix_len=prefix_len, num_special=num_special)
        self.prefix_len = prefix_len
        self.inputs = _range(max(0, input_len - num_special), "input_ratio", input_ratio)
        ratio = input_ratio if output_ratio is None else output_ratio
        lowest, highest = _range(output_len, "output_ratio", ratio)
        self.outputs = max(lowest, 1), max(highest, 1)
        if prefix_len + self.inputs[0] < 1:
            raise InputError(
                f"trace.input_len={input_len}: a prompt may have no token with "
                f"input_ratio={input_ratio}, num_special={num_special} (raise it, or prefix_len)"
            )

    @property
    def label(self) -> str:
        return "trace=random"

    def draw(self, num_rows: int, rng: np.random.Generator) -> tuple[Column, Column]:
        """Draws from the two ranges, both ends included; a prompt has its prefix too."""
        drawn = rng.integers(
            [[self.inputs[0], self.outputs[0]]],
            [[self.inputs[1] + 1, self.outputs[1] + 1]],
            size=(num_rows, 2),
        )
        return drawn[:, 0] + self.prefix_len, drawn[:, 1]

    def of_lengths(self, prompts: Column, outputs: Column) -> Rows:
        """Rows whose prompts share the prefix alone."""
        each = tokens_per_id(self.prefix_len)
        owner = np.arange(len(prompts))
        ids = owned_ids(prompts, owner, self.prefix_len, np.zeros_like(owner), each)
        return Rows(prompts, outputs, prompt_ids=ids, tokens_per_id=each)


def _range(mean: int, name: str, ratio: float) -> tuple[int, int]:
    """The smallest and the largest length."""
    if not 0 <= ratio < 1:
        raise InputError(f"trace.{name}={ratio}: must be at least 0 and below 1")
    return math.floor(mean * (1 - ratio)), math.ceil(mean * (1 + ratio))
