"""The input of every step of the ladder: a flat list of tokens, prompts first, then one token of each decode."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from testbed.core.errors import InputError


@dataclass(frozen=True)
class Wave:
    """Tokens of different sequences: their indexes in the batch, their block tables and their context lengths."""

    tokens: Tensor
    block_tables: Tensor
    context_lens: Tensor


@dataclass(frozen=True)
class LadderBatch:
    """Sequence i has news[i] new tokens after contexts[i] - news[i] cached ones; the first num_prompts are prompts.

    block_tables: int32 [num_seqs, max_blocks]; seq_ids, positions: int32 [num_tokens]; slot_mapping: int64
    [num_tokens], block id * block_size + offset; query_starts: int32 [num_seqs + 1]; context_lens: int32 [num_seqs].
    """

    news: tuple[int, ...]
    contexts: tuple[int, ...]
    num_prompts: int
    block_tables: Tensor
    seq_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    query_starts: Tensor
    context_lens: Tensor

    @property
    def num_prompt_tokens(self) -> int:
        """Total number of prompt tokens."""
        return sum(self.news[: self.num_prompts])

    @cached_property
    def tokens(self) -> list[tuple[int, int]]:
        """(sequence, context length) of every token, for launchers with one launch per token."""
        pairs = zip(self.news, self.contexts, strict=True)
        return [(seq, end - new + i + 1) for seq, (new, end) in enumerate(pairs) for i in range(new)]

    @cached_property
    def waves(self) -> list[Wave]:
        """The first new token of every sequence, then the second of those that have one, and so on."""
        starts = np.cumsum([0, *self.news])
        found = []
        for i in range(max(self.news, default=0)):
            seqs = [seq for seq, new in enumerate(self.news) if new > i]
            tokens = torch.from_numpy(starts[seqs] + i).to(self.positions.device)
            found.append(Wave(tokens, self.block_tables[seqs].contiguous(), self.positions[tokens] + 1))
        return found


def flatten(
    news: Sequence[int], contexts: Sequence[int], num_prompts: int, block_tables: NDArray[np.int32], block_size: int
) -> dict[str, NDArray[np.generic]]:
    """The flat arrays of a batch by their names in LadderBatch; needs no GPU."""
    _check(news, contexts, num_prompts, block_tables, block_size)
    pairs = list(zip(news, contexts, strict=True))
    seq_ids = np.repeat(np.arange(len(news), dtype=np.int32), news)
    positions = np.concatenate([np.arange(0), *(np.arange(end - new, end) for new, end in pairs)]).astype(np.int32)
    blocks, offsets = np.divmod(positions.astype(np.int64), block_size)
    return {
        "seq_ids": seq_ids,
        "positions": positions,
        "slot_mapping": block_tables[seq_ids, blocks].astype(np.int64) * block_size + offsets,
        "query_starts": np.cumsum([0, *news]).astype(np.int32),
        "context_lens": np.array(contexts, np.int32),
    }


def ladder_batch(
    news: Sequence[int], contexts: Sequence[int], num_prompts: int, block_tables: NDArray[np.int32], block_size: int,
    device: str = "cuda",
) -> LadderBatch:  # fmt: skip
    """A batch with its arrays on the device."""
    arrays = flatten(news, contexts, num_prompts, block_tables, block_size) | {"block_tables": block_tables}
    there = {name: torch.from_numpy(np.ascontiguousarray(array)).to(device) for name, array in arrays.items()}
    return LadderBatch(tuple(news), tuple(contexts), num_prompts, **there)


def _check(
    news: Sequence[int], contexts: Sequence[int], num_prompts: int, block_tables: NDArray[np.int32], block_size: int
) -> None:
    if not len(news) == len(contexts) == len(block_tables):
        raise InputError(f"{len(news)} counts of new tokens, {len(contexts)} contexts, {len(block_tables)} tables")
    if not 0 <= num_prompts <= len(news):
        raise InputError(f"num_prompts={num_prompts}: the batch has {len(news)} sequences")
    for seq, (new, end) in enumerate(zip(news, contexts, strict=True)):
        if not 1 <= new <= end:
            raise InputError(f"sequence {seq}: has {new} new tokens in a context of {end} (give 1 to {end})")
        if seq >= num_prompts and new != 1:
            raise InputError(f"sequence {seq}: has {new} new tokens (a decode has one, and prompts come first)")
        if end > block_tables.shape[1] * block_size:
            capacity = block_tables.shape[1] * block_size
            raise InputError(f"sequence {seq}: has {end} tokens, its table only {capacity} slots")
