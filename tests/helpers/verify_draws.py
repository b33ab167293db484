"""Check of the kernel that draws tokens: the tokens of the distribution function in float64."""

import numpy as np
import torch
from torch import Tensor

from testbed.kernels.launch.sampling import draw_tokens
from testbed.kernels.verify.reference import DEVICE, on_device

ROUNDING = 1e-5  # of a sum in float32, as a share of the whole


def check_draws(rng: np.random.Generator, vocab_size: int, dtype: torch.dtype) -> bool:
    """Draws from strided rows at random numbers and at 0 and 1: no token lies further from its
    number than sums are rounded, and none has no probability.
    """
    num_rows, num_draws, temperature = 6, 40, float(rng.choice([0.3, 1.0, 4.0]))
    whole = torch.randn(num_rows, vocab_size + 8, device=DEVICE) * 5
    whole[0, 1:3] = float("-inf")
    logits = whole.to(dtype)[:, :vocab_size]
    rows = rng.integers(0, num_rows, num_draws)
    numbers = rng.random(num_draws, dtype=np.float32)
    numbers[:2] = 0, 1
    tokens = torch.full((num_draws,), -1, device=DEVICE)
    draw_tokens(tokens, logits, on_device(rows), on_device(numbers), temperature=temperature)
    return are_drawn(tokens, logits[on_device(rows)], numbers, temperature)


def are_drawn(tokens: Tensor, logits: Tensor, numbers: np.ndarray, temperature: float) -> bool:
    """True if each number lies in its token's range of the distribution function."""
    shares = torch.softmax(logits.double() / temperature, dim=1)
    ends = shares.cumsum(dim=1)
    end, share = (x.gather(1, tokens[:, None]).flatten().cpu() for x in (ends, shares))
    drawn = torch.from_numpy(numbers).double()
    is_near = (end - share - ROUNDING <= drawn) & (drawn <= end + ROUNDING)
    return bool((is_near & (share > 0)).all())
