"""The limits of an iteration."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """max_num_batched_tokens: tokens of an iteration at most, the budget. max_num_seqs: sequences
    that run at most. max_chunk_tokens: of one prompt in an iteration; 0: as many as the budget
    leaves.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    max_chunk_tokens: int = 0
