"""The input of every step of the ladder: a flat list of tokens, prompts first, then one token of each decode."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Wave:
    """Tokens of different sequences: their indexes in the batch, their block tables and their context lengths."""

    tokens: Tensor
    block_tables: Tensor
    context_lens: Tensor


@dataclass(frozen=True)
class LadderBatch:
    """Sequence i has news[i] new tokens after contexts[i] - news[i] cached ones; the first num_prompts are prompts.

    block_tables: int32 [num_seqs, max_blocks], on the device of all tensors.
    """

    news: Sequence[int]
    contexts: Sequence[int]
    num_prompts: int
    block_tables: Tensor

    @cached_property
    def tokens(self) -> list[tuple[int, int]]:
        """(sequence, context length) of every token, for launchers with one launch per token."""
        pairs = zip(self.news, self.contexts, strict=True)
        return [(seq, end - new + i + 1) for seq, (new, end) in enumerate(pairs) for i in range(new)]

    @cached_property
    def seq_ids(self) -> Tensor:
        """The sequence of every token, int32."""
        return self._ints([seq for seq, _ in self.tokens])

    @cached_property
    def positions(self) -> Tensor:
        """Tokens of its sequence before every token, int32."""
        return self._ints([end - 1 for _, end in self.tokens])

    @cached_property
    def query_starts(self) -> Tensor:
        """The first token of every sequence and the number of tokens, int32."""
        return self._ints([0, *np.cumsum(self.news).tolist()])

    @cached_property
    def context_lens(self) -> Tensor:
        """The tokens of every sequence, int32."""
        return self._ints(self.contexts)

    @cached_property
    def waves(self) -> list[Wave]:
        """The first new token of every sequence, then the second of those that have one, and so on."""
        found = []
        for i in range(max(self.news)):
            seqs = [seq for seq, new in enumerate(self.news) if new > i]
            tokens = self.query_starts[seqs].long() + i
            found.append(Wave(tokens, self.block_tables[seqs].contiguous(), self.positions[tokens] + 1))
        return found

    def _ints(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.block_tables.device)
