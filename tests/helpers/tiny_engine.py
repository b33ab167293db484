"""Words of `testbed run` for a model of one layer on the GPU engine, which a CPU computes."""

SHAPE = {
    "num_layers": 1,
    "hidden_size": 16,
    "num_heads": 2,
    "num_kv_heads": 2,
    "head_size": 8,
    "ffn_size": 16,
    "vocab_size": 61,
}
KV_BYTES = 2 * 2 * 16  # of a token


def model_words(shape):
    """The words of a model with this shape, called small."""
    return ("model.name=small", *(f"model.{name}={value}" for name, value in shape.items()))


SMALL = model_words(SHAPE)
ON_CPU = (
    "engine=gpu",
    "engine.device=cpu",
    "engine.dtype=float32",
    "engine.graphs=0",
    "engine.warm=[]",
)
