"""A tiny model's server on a CPU, whose tokens are real."""

from tiny_engine import ON_CPU, model_words

MODEL = {
    "num_layers": 2,
    "hidden_size": 32,
    "num_heads": 4,
    "num_kv_heads": 4,
    "head_size": 8,
    "ffn_size": 64,
    "vocab_size": 61,
    "max_len": 512,
}
SLOTS = 4096
# The kernels need heads of 64 or 128 values
WIDE = {"hidden_size": 256, "head_size": 64, "ffn_size": 512}


def small(shape):
    """The words of a run of a small model on a pool of SLOTS slots."""
    num_bytes = 2 * 2 * shape["num_layers"] * shape["hidden_size"]  # of a token's K and V
    return (
        *model_words(shape),
        f"++server.kv_memory_gib={{small: {SLOTS * num_bytes / 2**30}}}",
        "swap_space_gib=0",
        "arrivals.duration_s=1",
        "arrivals.rate=1",
        "engine=gpu",
    )


WORDS = (*small(MODEL), *ON_CPU)
ON_GPU = small(MODEL | WIDE)


def ids_of(text):
    """The token ids of an answer of a server without a tokenizer."""
    return [int(word.removeprefix("t")) for word in text.split()]
