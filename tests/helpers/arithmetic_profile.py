"""A profile whose times are simple functions of counts, so that a test can add them up by hand.

Times of a section in microseconds; between its points and beyond them they follow the same line.
"""

from testbed.core.specs import GpuSpec, ModelSpec

LAYERS = 4
MODEL = ModelSpec(
    name="sums",
    num_layers=LAYERS,
    hidden_size=96,
    num_heads=8,
    num_kv_heads=2,
    head_size=16,
    ffn_size=200,
    ffn_matrices=2,
    vocab_size=1100,
    max_len=4096,
)
KV_BYTES = LAYERS * 2 * 2 * 16 * 2  # of a token: layers, K and V, heads, values, bytes
GPU = GpuSpec("made up", 10**9, 2e12, 300e12, host_bandwidth=8e9, link_bandwidth=100e9)
SEQS, MEANS, SIZES = (1, 8, 64), (16, 1000), (8, 16)


def linear(num_tokens):
    return 10 + num_tokens / 4


def output_head(num_rows):
    return 50 + num_rows / 2


def once_per_iteration(num_tokens):
    return 3 + num_tokens / 8


def cache_write(num_tokens):
    return 1 + num_tokens / 16


def decode_attention(num_seqs, context, block_size=16, ragged=True):
    return num_seqs + context / 4 + block_size / 16 + 2 * ragged


def paper_attention(num_seqs, context):
    return 2 * (num_seqs + context / 4)


def contiguous_attention(num_seqs, context):
    return num_seqs / 2 + context / 4


def prefill_attention(new, past):
    """Of one prompt by itself."""
    return 4 + new / 4 + past / 64


def launched_eager(num_tokens):
    return 100 - num_tokens / 8


def launched_graph(num_seqs):
    return -2 - num_seqs / 16


def block_copy(block_size, num_blocks):
    return 2 + block_size * num_blocks / 16


def swap(method, direction, block_size, num_blocks):
    first = {"fused": 20, "per block": 40}[method] + {"out": 0, "in": 5}[direction]
    return first + block_size * num_blocks / 8


def all_reduce(num_bytes):
    """Over two GPUs."""
    return 4 + num_bytes / 1000


def section(axes, points):
    return {"axes": axes.split(), "columns": ["us"], "points": points}


def by_tokens(time_us):
    return section("num_tokens", [[n, time_us(n)] for n in (1, 64, 512)])


def decodes(time_us, kinds):
    """Points of (block size, spread, sequences, total context)."""
    points = []
    for block_size, spread in kinds:
        for num_seqs in SEQS:
            for context in (num_seqs * mean for mean in MEANS):
                us = time_us(num_seqs, context, block_size, spread == "ragged")
                points.append([block_size, spread, num_seqs, context, us])
    return section("block_size spread num_seqs total_context", points)


def of_prompts():
    """One prompt by itself, and 4 at once, which take three times as long."""
    points = []
    for count, factor in ((1, 1), (4, 3)):
        for new in (16, 1024):
            for past in (0, 512):
                points.append([count, new, past, factor * prefill_attention(new, past)])
    return section("num_seqs new_tokens past_tokens", points)


def swaps():
    points = []
    for method in ("fused", "per block"):
        for direction in ("out", "in"):
            for size in SIZES:
                for count in (1, 100):
                    us = swap(method, direction, size, count)
                    points.append([method, direction, size, count, us])
    return section("method direction block_size num_blocks", points)


EVERY_KIND = [(size, spread) for size in SIZES for spread in ("equal", "ragged")]


def arithmetic_profile(num_gpus=1, model=None, **changes):
    """The profile of a shard on one of num_gpus GPUs; sections are added, or left out by None."""
    copies = [[size, count, block_copy(size, count)] for size in SIZES for count in (1, 100)]
    sections = {
        "linear": by_tokens(linear),
        "output_head": section("num_rows", [[n, output_head(n)] for n in (1, 256)]),
        "once_per_iteration": by_tokens(once_per_iteration),
        "cache_write": by_tokens(cache_write),
        "decode_attention": decodes(decode_attention, EVERY_KIND),
        "decode_attention_paper_kernel": decodes(
            lambda n, context, *kind: paper_attention(n, context), [(16, "ragged")]
        ),
        "contiguous_attention": decodes(
            lambda n, context, *kind: contiguous_attention(n, context), [(16, "ragged")]
        ),
        "prefill_attention": of_prompts(),
        "launched_eager": by_tokens(launched_eager),
        "launched_graph": section(
            "kernel num_seqs", [["paged", n, launched_graph(n)] for n in SEQS]
        ),
        "block_copy": section("block_size num_blocks", copies),
        "swap": swaps(),
        "overhead": section("what", [["iteration", 7.0], ["request", 2.0], ["token", 0.5]]),
    }
    if num_gpus > 1:
        reduced = [[2, size, all_reduce(size)] for size in (1000, 64_000)]
        sections["all_reduce"] = section("num_gpus bytes", reduced)
    sections |= changes
    return {
        "format": 1,
        "fingerprint": {"source": "measured", "device": "made up"},
        "model": model_values(model or MODEL),
        "num_gpus": num_gpus,
        "gpu": None,
        "sections": {name: body for name, body in sections.items() if body is not None},
    }


def model_values(model):
    """The values of a model that a profile has, without those left at None."""
    names = ModelSpec.__dataclass_fields__
    return {name: getattr(model, name) for name in names if getattr(model, name) is not None}
