"""Requests by which the iterations of a vLLM show their costs, in waves as drive.py has them.

Decodes: batches that shrink while they run, at several contexts. Prompts: alone, when nothing runs;
among decodes, at the beginning, in the middle and at the end, so that a profile has the mean of a
host's speeds and their spread; and behind a prefix that the cache has. This module imports nothing
but the standard library, for it runs with the packages of the user's vLLM. Another, short sweep
shows the present speed of a host that was swept before.

Beyond the graphs the time of a matrix product is a staircase: a GPU computes it in tiles of 128
tokens and more, as many at once as it has multiprocessors. A length that is a multiple of a tile is
at the end of a step, and the tokens of a served iteration are at any place of one. So the lengths
of prompts there are the middles of equal parts of each doubling, which no tile divides.
"""

from collections.abc import Iterator
from math import ceil
from random import Random
from typing import Any

Wave = dict[str, Any]

FIRST_ID, LAST_ID = 1000, 30000  # token ids that are nothing special in any vocabulary
WARM_UP = "warm-up"
CONTEXTS = (128, 512, 1024, 2048, 4096, 8192)
BATCHES = (
    *(640, 576, 512, 480, 448, 416, 384, 352, 320, 288, 256, 224, 192, 160, 128, 112, 96, 80),
    *(64, 56, 48, 40, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1),
)
STEPS = 12  # iterations of each size of a batch
LARGEST_GRAPH = 512  # tokens
DOUBLINGS, PARTS = 4, 4  # of the tokens beyond it, and of each of these
BEYOND = tuple(
    round(LARGEST_GRAPH * 2 ** ((part + 0.5) / PARTS)) for part in range(DOUBLINGS * PARTS)
)
LONE = (16, 64, 128, 192, 256, 320, 384, 448, 512, *BEYOND)
AMONG = (16, 64, 128, 256, 384, 480)
TOGETHER = ((2, 128), (4, 64), (4, 128), (4, 256), (8, 128), (16, 64), (32, 32))  # prompts, tokens
AMONG_DECODES = (64, 1, 128, 16, 256, 96, 4, 192, 32, 160, 8)  # neighbours apart in time
SHORT_CONTEXT = 128
PASTS = (1024, 4096, 12000)
BEHIND = (16, 64, 256, 512, 1024, 2048, 4096)
REPEATS = 4
AMONG_REPEATS = 3  # of each kind of prompts among as many decodes, in each pass
PASSES = 3  # over all numbers of decodes, a minute apart: a host's speed drifts by minutes
AMONG_BEYOND = tuple(BEYOND[1 + number : 10 : PASSES] for number in range(PASSES))  # of each pass
FILLED = 0.8  # share of the pool that a sweep takes at most
MOST_FILLED = 400_000  # tokens that it takes at most, so that a large pool takes no longer
PAUSE_S = 0.02
LATER = 1024  # tokens that requests which run meanwhile may add
PRESENT = "present"  # in place of a wave: those of the host's present speed
PRESENT_DECODES = (48, 4, 16)
PRESENT_LATER = 320
PRESENT_KINDS = (  # prompts, tokens of each: within the largest graph, and beyond
    *((1, 64), (1, 128), (1, 384), (2, 128), (4, 64), (1, 256)),
    *((1, 664), (1, 939), (1, 1328), (4, 128), (4, 256), (8, 128)),
)


def waves(
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    max_model_len: int,
    pool_tokens: int,
    caches_prefixes: bool,
) -> Iterator[Wave]:
    """All sweeps, for a server with these limits."""
    longest = min(max_model_len - 64, pool_tokens // 2)
    lone = [new for new in LONE if new <= longest]
    yield prompts(WARM_UP, 0, [[1, new, 0] for new in (*lone, *AMONG) if new <= longest])
    yield prompts("prompts", 0, _repeated([[1, new, 0] for new in lone]))
    yield prompts("prompts of two iterations", 0, _two_iterations(max_num_batched_tokens, longest))
    yield prompts("first decodes", 0, [[1, 16, 0]] * REPEATS, output=4)
    room = min(FILLED * pool_tokens, MOST_FILLED)
    shrinking = [
        _shrinking(context, sizes, max_num_batched_tokens)
        for context in CONTEXTS
        if context <= longest
        for sizes in [_sizes(context, max_num_seqs, room)]
        if sizes
    ]
    counts = [
        count
        for count in AMONG_DECODES
        if count < max_num_seqs and count * (SHORT_CONTEXT + LATER) <= room
    ]
    half = len(shrinking) // 2
    yield from _among(0, counts, longest)
    yield from shrinking[:half]
    yield from _among(1, counts, longest)
    yield from shrinking[half:]
    yield from _among(2, counts, longest)
    if caches_prefixes:
        kinds = [[1, new, past] for past in PASTS for new in BEHIND if new + past <= longest]
        yield prompts("prompts behind a cached prefix", 0, _repeated(kinds))


def present_waves(
    *, max_num_batched_tokens: int, max_num_seqs: int, max_model_len: int, pool_tokens: int
) -> Iterator[Wave]:
    """The short sweep of a host's present speed, in about 10 s: prompts among few decodes, as many
    within the graphs as beyond, that fit into a small pool.
    """
    longest = min(max_model_len - 64, pool_tokens // 2, max_num_batched_tokens - PRESENT_DECODES[0])
    kinds = [[count, new, 0] for count, new in PRESENT_KINDS if count * new <= longest]
    for number, count in enumerate(PRESENT_DECODES):
        if count < max_num_seqs and count * (SHORT_CONTEXT + PRESENT_LATER) <= FILLED * pool_tokens:
            asked = _repeated(kinds, AMONG_REPEATS, seed=number)
            yield prompts(f"prompts among {count} decodes", count, asked, later=PRESENT_LATER)


def _sizes(context: int, max_num_seqs: int, room: float) -> list[int]:
    """The sizes of batches at this context that a server with `room` tokens can run."""
    return [
        size
        for size in BATCHES
        if size <= max_num_seqs and size * (context + STEPS * len(BATCHES)) <= room
    ]


def _among(number: int, counts: list[int], longest: int) -> Iterator[Wave]:
    """A pass of prompts among each number of decodes, with the lengths of this pass."""
    among = [new for new in (*AMONG, *AMONG_BEYOND[number]) if new <= longest]
    kinds = [*([1, new, 0] for new in among), *([count, new, 0] for count, new in TOGETHER)]
    for count in counts:
        asked = _repeated(kinds, AMONG_REPEATS, seed=number)
        yield prompts(f"prompts among {count} decodes", count, asked)


def prompts(
    name: str, num_running: int, kinds: list[list[int]], output: int = 1, later: int = LATER
) -> Wave:
    """Prompts one after the other, while num_running requests decode `later` tokens."""
    running = [[SHORT_CONTEXT, later]] * num_running
    return {
        "name": name,
        "running": running,
        "prompts": kinds,
        "output": output,
        "pause_s": PAUSE_S,
    }


def _repeated(kinds: list[list[int]], repeats: int = REPEATS, *, seed: int = 0) -> list[list[int]]:
    """Each several times, in an order in which none is always behind the same one."""
    order = kinds * repeats
    Random(seed).shuffle(order)
    return order


def _two_iterations(max_num_batched_tokens: int, longest: int) -> list[list[int]]:
    """Two prompts that fill an iteration each: the second is launched while the first computes."""
    return [[2, min(max_num_batched_tokens, longest), 0]] * REPEATS


def _shrinking(context: int, sizes: list[int], max_num_batched_tokens: int) -> Wave:
    """A batch that has each of these sizes for STEPS iterations, the largest first.

    Prompts take several iterations; a request that is done early decodes until the others are.
    """
    largest = sizes[0]
    done = [ceil((i + 1) * context / max_num_batched_tokens) for i in range(largest)]
    running = []
    for i in range(largest):
        stage = next((k for k, size in enumerate(sizes) if size <= i), len(sizes))
        running.append([context, done[-1] - done[i] + 1 + STEPS * stage])
    return {"name": f"decodes at {context}", "running": running, "prompts": []}
