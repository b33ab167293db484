"""Attention of iterations that hold a prompt: our prefill and decode kernels one after the other, in one graph."""

from collections.abc import Callable

from kernels.measure.bench_inputs import DecodeInputs, Pools, PrefillInputs
from kernels.measure.sweeps import REPLAYS, Point, point, ragged_lens
from kernels.measure.timing import time_graph
from kernels.verify.random_batches import Shape

NEW_TOKENS = (16, 64, 256, 512, 1024, 2048)
PAST_TOKENS = (0, 512, 2048)
NUM_SEQS = (1, 8, 32, 64, 128, 256)
CONTEXTS = (64, 512, 2048)
AXES = ("prefill_tokens", "past_tokens", "num_seqs", "mean_context")
MAX_TOKENS = 1 << 18  # of all decodes together


def mixed_attention(prompts: Pools, decodes: Pools, shape: Shape, max_len: int) -> list[Point]:
    """One layer: a prompt's chunk behind its past, beside decodes of ragged lengths; num_seqs 0 is the prompt alone.

    Prompts and decodes have pools of their own, so that neither finds the other's K and V in the L2 cache.
    """
    points = []
    for new in NEW_TOKENS:
        for past in PAST_TOKENS:
            if new + past > max_len:
                continue
            prefill = PrefillInputs(prompts, shape, [new], [past]).paged()
            points.append(point(new, past, 0, 0, timing=time_graph(prefill, REPLAYS, 800.0)))
            for num_seqs, mean in decode_grid(max_len):
                batch = DecodeInputs(decodes, shape, ragged_lens(num_seqs, mean, max_len)).paged()
                both = time_graph(together(prefill, batch), REPLAYS, 800.0)
                points.append(point(new, past, num_seqs, mean, timing=both))
    return points


def decode_grid(max_len: int) -> list[tuple[int, int]]:
    """Numbers of sequences and their mean contexts."""
    return [(n, mean) for n in NUM_SEQS for mean in CONTEXTS if mean < max_len and n * mean <= MAX_TOKENS]


def together(prefill: list[Callable[[], None]], decode: list[Callable[[], None]]) -> list[Callable[[], None]]:
    """A layer's two kernels as one call; the shorter list of layers starts over."""

    def both(i: int) -> None:
        prefill[i % len(prefill)]()
        decode[i % len(decode)]()

    return [lambda i=i: both(i) for i in range(max(len(prefill), len(decode)))]
