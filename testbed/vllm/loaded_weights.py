"""Bytes that "Model loading took" counts beside the parameters: tables of the rope, and what
PyTorch's allocator rounds large tensors up to.
"""

from collections.abc import Iterator

from testbed.core.specs import GIB, ModelSpec

MIB = 1 << 20
# PyTorch (c10/cuda/CUDACachingAllocator.cpp): a tensor of 10 MiB and more has a segment of its own
# in steps of 2 MiB, and keeps what is left of it up to 1 MiB.
OWN_SEGMENT, STEP, KEPT = 10 * MIB, 2 * MIB, MIB


def beside_parameters_gib(
    model: ModelSpec, num_positions: int, num_gpus: int, num_tables: int = 1
) -> float:
    """GiB on each GPU. num_positions: of the model, whatever the longest sequence that is served.
    num_tables: of the rope, each of num_positions positions.
    """
    rotated = model.latent.rope_size if model.latent else model.head_size
    tables = num_tables * num_positions * rotated * model.dtype_bytes
    rounded = sum(allocated(size) - size for size in tensor_bytes(model, num_gpus))
    return (tables + rounded) / GIB


def allocated(num_bytes: int) -> int:
    """The bytes that the allocator counts for a tensor."""
    segment = -(-num_bytes // STEP) * STEP
    return segment if num_bytes >= OWN_SEGMENT and segment - num_bytes <= KEPT else num_bytes


def tensor_bytes(model: ModelSpec, num_gpus: int) -> Iterator[int]:
    """The large tensors of a model's layers on one GPU, of plain attention and feed-forward
    networks with and without experts, and of the vocabulary.
    """
    hidden, bits = model.hidden_size, model.weight_bits or 8 * model.dtype_bytes
    query = model.num_heads * model.head_size // num_gpus
    key_and_value = 2 * max(1, model.num_kv_heads // num_gpus) * model.head_size
    gates = model.ffn_matrices - 1
    num_dense = model.ffn_layers - model.num_expert_layers
    columns = num_dense * [model.ffn_size // num_gpus]
    if model.experts:
        columns += model.num_expert_layers * [model.experts.shared_size // num_gpus]
    values = [hidden * part for size in columns for part in (gates * size, size)]
    if model.latent is None:
        for _ in range(model.num_attention_layers):
            values += [hidden * (query + key_and_value), hidden * query]
    yield from (int(count * bits / 8) for count in values)
    vocabulary = model.vocab_size * hidden * model.dtype_bytes // num_gpus
    yield from [vocabulary] * (1 if model.tied_embedding else 2)
