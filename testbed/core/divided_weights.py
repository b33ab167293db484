"""Weights of one GPU in tensor parallelism: an even share, and what servers copy to every GPU.

Sources: vLLM's models/deepseek_v2.py (ReplicatedLinear), layers/linear.py (QKVParallelLinear, whose
heads of K and V are copied if they are fewer than the GPUs), the routers of experts, and
models/gemma4_mm.py, whose vision tower is not divided; SGLang's classes of these names.
"""

from testbed.core.slots import ceil_div
from testbed.core.specs import ModelSpec

VOCABULARY = 64  # tokens, to whose multiples a vocabulary is padded


def columns_problem(model: ModelSpec, num_gpus: int, expert_shares: int) -> str:
    """The reason why num_gpus GPUs cannot divide the vocabulary or a network; empty if they can.
    expert_shares: GPUs that divide one expert.
    """
    parts = [(VOCABULARY * ceil_div(model.vocab_size, VOCABULARY), num_gpus, "padded vocabulary")]
    if model.ffn_layers > model.num_expert_layers:
        parts.append((model.ffn_size, num_gpus, "columns of a feed-forward network"))
    if model.experts is not None:
        parts.append((model.experts.size, expert_shares, "columns of an expert"))
        parts.append((model.experts.shared_size, num_gpus, "columns that all tokens share"))
    for count, shares, name in parts:
        if count % shares:
            return f"the {count:,} {name} must be divisible by {shares} GPUs"
    return ""


def bytes_on_gpu(model: ModelSpec, weight_bytes: float, num_gpus: int) -> float:
    """Bytes on each of num_gpus GPUs. weight_bytes: of all weights, each counted once."""
    bits = model.weight_bits or 8 * model.dtype_bytes
    copied_bits = model.copied_bits or bits
    copied = (model.latent_params * bits + _narrow_params(model) * copied_bits) / 8
    copied += _router_params(model) * model.dtype_bytes
    if model.vision_heads is None:
        copied += (model.vision_params or 0) * model.dtype_bytes
    keys = _copied_heads(model, num_gpus) * copied_bits / 8
    return (weight_bytes + keys) / num_gpus + copied * (1 - 1 / num_gpus)


def _narrow_params(model: ModelSpec) -> int:
    """Weights of the projections to latent vectors, and of indexers."""
    if model.latent is None:
        return 0
    latent = model.latent
    columns = latent.q_rank + latent.kv_rank + latent.rope_size
    a_layer = model.hidden_size * columns + latent.index_params
    return model.num_attention_layers * a_layer


def _router_params(model: ModelSpec) -> int:
    count = model.experts.count if model.experts else 0
    return model.num_expert_layers * model.hidden_size * count


def _copied_heads(model: ModelSpec, num_gpus: int) -> int:
    """Weights of K and V of which a shape counts one copy, or one for both (Gemma-4's, which vLLM
    loads twice).
    """
    if model.latent is not None:
        return 0
    in_window = model.window.num_layers if model.window else 0
    counted = 1 if model.shared_kv else 2
    full = model.num_attention_layers - in_window
    kinds = [(full, counted, model.num_kv_heads, model.head_size)]
    if model.window is not None:
        kinds.append((in_window, 2, *model.heads_of_windows()))
    return sum(
        layers * model.hidden_size * heads * size * (2 * max(1, num_gpus // heads) - counted)
        for layers, counted, heads, size in kinds
    )
