"""Ids of what drawn prompts contain: a beginning that several share, then what only one has."""

from collections.abc import Sequence
from itertools import count
from math import gcd

import numpy as np

from testbed.core.request import Column

BLOCK = 16  # tokens of an id where no shared beginning ends within a block


def tokens_per_id(shared_len: int) -> int:
    """Tokens of an id so that a beginning of shared_len tokens ends where an id does."""
    return gcd(shared_len, BLOCK) if shared_len else BLOCK


def owned_ids(
    prompt_len: Column, owner: Column, shared_len: int, beginning: Column, each: int
) -> Sequence[tuple[int, ...]]:
    """The ids of each prompt, one for each `each` tokens; the last may stand for fewer.

    A prompt starts with shared_len tokens that all prompts of the same `beginning` have. The tokens
    behind them belong to their owner, a session or the prompt itself: of two prompts of one owner
    the longer continues the shorter.
    """
    num_shared = shared_len // each
    num_ids = -(-prompt_len // each)
    num_beginnings = int(beginning.max()) + 1 if len(beginning) else 0
    width = int(num_ids.max()) if len(num_ids) else 0
    first_own = num_beginnings * num_shared + owner * width
    columns = np.stack([beginning * num_shared, first_own, num_ids])
    return [
        (*range(shared, shared + num_shared), *range(own, own + count - num_shared))
        for shared, own, count in columns.T.tolist()
    ]


def with_unknown(
    contents: Sequence[tuple[int, ...]], prompt_lens: Sequence[int], each: int
) -> list[tuple[int, ...]]:
    """The contents, where a prompt without ids gets some that no other has (negative numbers)."""
    unused = count(-1, -1)
    return [
        ids or tuple(next(unused) for _ in range(-(-prompt_len // each)))
        for ids, prompt_len in zip(contents, prompt_lens, strict=True)
    ]
