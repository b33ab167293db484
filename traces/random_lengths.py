"""Prompts and outputs of random lengths, as `vllm bench serve` draws them."""

import math
from typing import Annotated

import numpy as np
from annotated_types import Interval

from testbed.core.errors import InputError, check_least
from testbed.core.request import Column, Rows
from testbed.core.units import NumTokens, PositiveCount, PositiveTokens
from testbed.traces.contents import owned_ids, tokens_per_id
from testbed.traces.drawn import Drawn
from testbed.traces.reader import stream

Spread = Annotated[float, Interval(ge=0, lt=1)]


class RandomLengths(Drawn):
    """The data set `random` of `vllm bench serve` (release 0.33), lengths in tokens.

    input_len, output_len, prefix_len: --random-input-len, --random-output-len, --random-prefix-len.
    The ratios are --random-range-ratio for prompts and for outputs: a length is uniform over the
    whole numbers from floor(mean (1 - ratio)) to ceil(mean (1 + ratio)), an output at least 1.
    num_special: tokens that the server's tokenizer adds to each prompt; as many fewer are drawn
    (the mean is of input_len - num_special), and all prompts start with them. Every prompt goes on
    with the same prefix_len tokens. No two prompts share what follows if vocab_size is None; else
    it is one random token of vocab_size and then each next token of the vocabulary, so that prompts
    recur, as they do in vLLM's data set.
    """

    def __init__(
        self,
        input_len: PositiveTokens = 1024,
        output_len: PositiveTokens = 128,
        input_ratio: Spread = 0.0,
        output_ratio: Spread | None = None,
        prefix_len: NumTokens = 0,
        num_special: NumTokens = 0,
        vocab_size: PositiveCount | None = None,
    ) -> None:
        check_least(1, input_len=input_len, output_len=output_len)
        check_least(0, prefix_len=prefix_len, num_special=num_special)
        if vocab_size is not None:
            check_least(1, vocab_size=vocab_size)
        self.vocab_size = vocab_size
        self.shared_len = num_special + prefix_len
        self.inputs = _range(max(0, input_len - num_special), "input_ratio", input_ratio)
        ratio = input_ratio if output_ratio is None else output_ratio
        lowest, highest = _range(output_len, "output_ratio", ratio)
        self.outputs = max(lowest, 1), max(highest, 1)
        if prefix_len + self.inputs[0] < 1:
            raise InputError(
                key="trace.input_len",
                value=input_len,
                problem=(
                    f"a prompt may have no token with input_ratio={input_ratio}, "
                    f"num_special={num_special}"
                ),
                remedy="raise it, or prefix_len",
            )

    @property
    def label(self) -> str:
        return "trace=random"

    def rows(self, num_rows: int | None, seed: int, max_len: int | None = None) -> Rows:
        """num_rows draws; rows of max_len tokens or more are drawn again."""
        rows = super().rows(num_rows, seed, max_len)
        if self.vocab_size is None:
            return rows
        starts = stream(seed, "starts").integers(0, self.vocab_size, len(rows))
        return self._starting(rows.prompt_len, rows.output_len, starts)

    def draw(self, num_rows: int, rng: np.random.Generator) -> tuple[Column, Column]:
        """Draws from the two ranges, both ends included; a prompt has its beginning too."""
        drawn = rng.integers(
            [[self.inputs[0], self.outputs[0]]],
            [[self.inputs[1] + 1, self.outputs[1] + 1]],
            size=(num_rows, 2),
        )
        return drawn[:, 0] + self.shared_len, drawn[:, 1]

    def of_lengths(self, prompts: Column, outputs: Column) -> Rows:
        """Rows whose prompts share their beginning alone."""
        return self._starting(prompts, outputs, np.arange(len(prompts)))

    def _starting(self, prompts: Column, outputs: Column, starts: Column) -> Rows:
        """Rows whose prompts have the same content behind the beginning if they start alike."""
        each = tokens_per_id(self.shared_len)
        ids, _ = owned_ids(prompts, starts, self.shared_len, np.zeros_like(starts), each)
        return Rows(prompts, outputs, prompt_ids=ids, tokens_per_id=each)


def _range(mean: int, name: str, ratio: float) -> tuple[int, int]:
    """The smallest and the largest length."""
    if not 0 <= ratio < 1:
        raise InputError(key=f"trace.{name}", value=ratio, problem="must be at least 0 and below 1")
    return math.floor(mean * (1 - ratio)), math.ceil(mean * (1 + ratio))
