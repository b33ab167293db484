"""RoPE's angles, and their plain use: each head's first and second half are the two coordinates that turn."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from kernels.engine.architecture import Architecture


def rotary_table(arch: Architecture, device: str) -> Tensor:
    """Cosines and sines by position, fp32 [max_len, 2, head_size / 2]."""
    size = arch.spec.head_size
    rates = arch.rope_theta ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
    if arch.rope_scaling is not None:
        rates = _stretched(rates, arch.rope_scaling)
    angles = torch.arange(arch.spec.max_len, dtype=torch.float64)[:, None] * rates
    return torch.stack([angles.cos(), angles.sin()], dim=1).float().to(device)


def rotate(x: Tensor, turns: Tensor) -> None:
    """Turn x [num_tokens, heads, head_size] in place by turns [num_tokens, 2, head_size / 2]."""
    cos, sin = turns[:, None, 0], turns[:, None, 1]
    first, second = x.float().chunk(2, dim=2)
    x.copy_(torch.cat([first * cos - second * sin, second * cos + first * sin], dim=2))


def _stretched(rates: Tensor, scaling: Mapping[str, float]) -> Tensor:
    """LLaMA 3.1: slow rates are divided by `factor`, fast ones stay, those between are mixed."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * rates / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return rates * (share + (1 - share) / scaling["factor"])
