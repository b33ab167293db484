"""A tiny model's server on a CPU, whose tokens are real."""

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
BYTES = 2 * 2 * 32 * 2  # of a token's K and V
WORDS = (
    "model.name=small",
    *(f"model.{name}={value}" for name, value in MODEL.items()),
    f"++server.kv_memory_gib={{small: {SLOTS * BYTES / 2**30}}}",
    "swap_space_gib=0",
    "arrivals.duration_s=1",
    "arrivals.rate=1",
    "engine=gpu",
    "engine.device=cpu",
    "engine.dtype=float32",
    "engine.graphs=0",
    "engine.warm=[]",
)


def ids_of(text):
    """The token ids of an answer of a server without a tokenizer."""
    return [int(word.removeprefix("t")) for word in text.split()]
