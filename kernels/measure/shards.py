"""What one GPU holds of a model that several serve together, and which splits have a profile that ships."""

import torch

from kernels.verify.random_batches import Shape
from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec

SHIPPED = {
    "opt-13b": 1,
    "opt-66b": 4,
    "opt-175b": 8,
    "llama-13b": 1,
    "llama-3-8b": 1,
    "llama-3-70b": 4,
    "qwen2.5-0.5b": 1,
}


def shard_shape(model: ModelSpec, num_gpus: int, block_size: int = 16) -> Shape:
    """Heads that one of num_gpus GPUs holds under tensor parallelism."""
    if model.num_heads % num_gpus or (model.num_kv_heads % num_gpus and num_gpus % model.num_kv_heads):
        raise InputError(
            f"{model.name}: {model.num_heads}/{model.num_kv_heads} heads do not split over {num_gpus} GPUs"
        )
    kv_heads = max(1, model.num_kv_heads // num_gpus)
    return Shape(model.num_heads // num_gpus, kv_heads, model.head_size, block_size, torch.float16)
