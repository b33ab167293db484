"""Ids of what drawn prompts contain: a beginning that several share, then what only one has."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from math import gcd

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Column, Rows

ANSWERS = 1 << 50  # ids of answers that a file's prompts contain
LONGEST_ANSWER = 1 << 22  # ids of a prompt and its answer
BLOCK = 16  # tokens of an id if no shared beginning ends within a block


def tokens_per_id(shared_len: int) -> int:
    """Tokens of an id so that a beginning of shared_len tokens ends where an id does."""
    return gcd(shared_len, BLOCK) if shared_len else BLOCK


def owned_ids(
    prompt_len: Column,
    owner: Column,
    shared_len: int,
    beginning: Column,
    each: int,
    output_len: Column | int = 0,
) -> tuple[Sequence[tuple[int, ...]], Column]:
    """The ids of each prompt, one for each `each` tokens, of which the last may stand for fewer,
    and the first id of its answer (see Incoming).

    A prompt starts with shared_len tokens that all prompts of the same `beginning` have. The tokens
    behind them belong to their owner, a session or the prompt itself: of two prompts of one owner
    the longer continues the shorter, with the answer of output_len tokens to that.
    """
    num_shared = shared_len // each
    num_ids = -(-prompt_len // each)
    num_beginnings = int(beginning.max()) + 1 if len(beginning) else 0
    width = int((-(-(prompt_len + output_len) // each)).max()) if len(num_ids) else 0
    first_own = num_beginnings * num_shared + owner * width
    columns = np.stack([beginning * num_shared, first_own, num_ids])
    ids = [
        (*range(shared, shared + num_shared), *range(own, own + count - num_shared))
        for shared, own, count in columns.T.tolist()
    ]
    return ids, first_own - num_shared


def with_answers(path: str, rows: Rows, answer_of: Sequence[int | None]) -> Rows:
    """Rows whose prompts contain answers.

    answer_of: for each row the earlier row with whose prompt and answer its prompt begins, as far
    as it goes; None for none. The ids of the answer, which a server knows when it has generated it,
    become ids of their own, which the trace's are below (see Incoming.answer_id).
    """
    if rows.prompt_ids is None:
        raise InputError(
            key=path,
            problem="says which prompts contain answers, but not what prompts contain",
            remedy="add ids",
        )
    each, given = rows.tokens_per_id, below_answers(rows.prompt_ids)
    ids, answer_id = list(given), ANSWERS + np.arange(len(rows)) * LONGEST_ANSWER
    for row, earlier in enumerate(answer_of):
        if earlier is None:
            continue
        first = int(rows.prompt_len[earlier]) // each if 0 <= earlier < row else 0
        if (
            not 0 <= earlier < row
            or rows.prompt_len[earlier] > rows.prompt_len[row]
            or (given[earlier][:first] != given[row][:first])
        ):
            raise InputError(
                key=f"{path}, row {row}",
                problem=(
                    f"does not begin with the prompt of row {earlier}, whose answer it is said to "
                    "contain"
                ),
                remedy="name an earlier row, counted from 0, with its first ids",
            )
        end = int(min(rows.prompt_len[row], rows.prompt_len[earlier] + rows.output_len[earlier]))
        answer = range(int(answer_id[earlier]) + first, int(answer_id[earlier]) + end // each)
        ids[row] = (*ids[earlier][:first], *answer, *given[row][first + len(answer) :])
        if answer and len(ids[earlier]) > first:  # its last id stands for fewer tokens
            ids[earlier] = (*ids[earlier][:first], answer[0])
    return replace(rows, prompt_ids=ids, answer_id=answer_id)


def below_answers(contents: Sequence[tuple[int, ...]]) -> Sequence[tuple[int, ...]]:
    """The same contents by ids below ANSWERS: as they are, or numbered in order."""
    if all(max(ids, default=0) < ANSWERS for ids in contents):
        return contents
    numbers: dict[int, int] = {}
    return [tuple(numbers.setdefault(each, len(numbers)) for each in ids) for ids in contents]


def with_unknown(
    contents: Sequence[tuple[int, ...]], prompt_lens: Sequence[int], each: int
) -> list[tuple[int, ...]]:
    """The contents, if a prompt without ids gets some that no other has (negative numbers)."""
    unused = count(-1, -1)
    return [
        ids or tuple(next(unused) for _ in range(-(-prompt_len // each)))
        for ids, prompt_len in zip(contents, prompt_lens, strict=True)
    ]
