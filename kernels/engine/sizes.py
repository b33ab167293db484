"""The sizes by which the engine allocates: of CUDA graphs, and of attention's workspace.

No torch is needed to read them.
"""

from bisect import bisect_left

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)
SHORTEST_CONTEXT = 256
# Beyond the sizes of decodes, those of prompts up to each number of tokens lie so many apart: a
# product of a few tokens takes the time of its weights, one of many that of its tokens.
STEPS = ((512, 32), (2048, 64), (2560, 128), (8192, 256))
LARGEST = STEPS[-1][0]
# Enough partial results for any decode plan: 32 x 128 are fewer
WORKSPACE_SEQS, WORKSPACE_CHUNKS = 512, 32


def bucket(num_seqs: int) -> int:
    """The batch size that a graph is captured for."""
    return BUCKETS[bisect_left(BUCKETS, num_seqs)]


def context_bucket(longest: int, max_len: int) -> int:
    """The longest context that a graph is captured for: a power of two, at most the longest
    sequence.
    """
    return min(max(SHORTEST_CONTEXT, 1 << (longest - 1).bit_length()), max(max_len, longest))


def buckets_up_to(max_num_seqs: int) -> list[int]:
    """The batch sizes that are captured for decodes of up to max_num_seqs sequences."""
    return [size for size in BUCKETS if size <= bucket(min(max_num_seqs, BUCKETS[-1]))]


def contexts_up_to(longest: int, max_len: int) -> list[int]:
    """The longest contexts that are captured for sequences of up to `longest` tokens."""
    lengths = [*range(1, longest + 1, SHORTEST_CONTEXT), longest]
    return sorted({context_bucket(length, max_len) for length in lengths})


def sizes_up_to(max_tokens: int) -> list[int]:
    """The numbers of tokens that graphs are captured for, up to the first that has room for
    max_tokens, or LARGEST.
    """
    sizes = list(BUCKETS)
    for end, step in STEPS:
        sizes += range(sizes[-1] + step, end + 1, step)
    return sizes[: bisect_left(sizes, max_tokens) + 1]
