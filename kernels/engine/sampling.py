"""The next token of a sequence, drawn from the likely ones."""

import numpy as np
import torch
from torch import Tensor


class TopP:
    """Draws from the most likely tokens whose probabilities sum to top_p, at a temperature.

    The random number depends on seed, request, sequence and step only: batching and preemption change no draw.
    """

    def __init__(self, temperature: float = 1.0, top_p: float = 1.0, seed: int = 0) -> None:
        if not (temperature > 0 and 0 < top_p <= 1):
            raise ValueError(f"temperature={temperature}, top_p={top_p}: must be above 0, and above 0 and at most 1")
        self.temperature = temperature
        self.top_p = top_p
        self.seed = seed

    def choose(self, logits: Tensor, numbers: list[float]) -> list[int]:
        """One token for each row of logits [num_rows, vocab_size], by a random number from 0 to 1 for each."""
        shares, tokens = torch.sort(
            torch.softmax(logits.float() / self.temperature, dim=1), descending=True, stable=True
        )
        sums = shares.cumsum(dim=1)
        kept = torch.where(sums - shares < self.top_p, shares, 0.0).cumsum(dim=1)
        aim = torch.tensor(numbers, device=logits.device)[:, None] * kept[:, -1:]
        places = torch.searchsorted(kept, aim, right=True).clamp_max(logits.shape[1] - 1)
        return tokens.gather(1, places).flatten().tolist()

    def uniform(self, request_id: int, index: int, num_generated: int) -> float:
        """The random number of a step of a request's sequence: it costs tens of microseconds."""
        key = [self.seed, 3, request_id, index, num_generated]
        return float(np.random.default_rng(key).random(dtype=np.float32))
