"""The places of a forward pass at which ranks depend on each other, for one rank and for several.

The residual stream is the same on every rank. If a product is a sum over the ranks, rank 0 adds the
residual to its part, so that the sum has it once.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Collectives(Protocol):
    """Collectives of the ranks; each calls the same in the same order, on the current stream."""

    def add(self, x: Tensor) -> None:
        """Make x, in place, the sum over the ranks."""

    def gather(self, x: Tensor) -> Tensor:
        """The x of every rank, [num_ranks, ...]."""

    def share(self, x: Tensor) -> None:
        """Make x, in place, that of rank 0."""

    def finish(self) -> None:
        """Wait until this rank's device has done all that it was given."""


class OneRank:
    """A rank that has the whole model."""

    def embed(self, tokens: Tensor, embedding: Tensor) -> Tensor:
        """The embedding's row of each token, [num_tokens, hidden]."""
        return F.embedding(tokens, embedding)

    def add_product(self, x: Tensor, h: Tensor, weight: Tensor) -> None:
        """x += h @ weight, in place, whose inputs are split over the ranks."""
        x.addmm_(h, weight)

    def project(self, h: Tensor, head: Tensor, out: Tensor | None = None) -> Tensor:
        """The logits of the whole vocabulary, [num_rows, vocab_size], on every rank; in `out` if
        there is one.
        """
        return torch.mm(h, head.t(), out=out)


ONE_RANK = OneRank()


class Ranks(OneRank):
    """One rank of several, which has the tokens from first_token on of its embedding's rows."""

    def __init__(
        self, rank: int, first_token: int, vocab_size: int, collectives: Collectives
    ) -> None:
        self.rank = rank
        self.first_token = first_token
        self.vocab_size = vocab_size
        self.collectives = collectives

    def embed(self, tokens: Tensor, embedding: Tensor) -> Tensor:
        rows = tokens - self.first_token
        elsewhere = (rows < 0) | (rows >= len(embedding))
        x = F.embedding(rows.masked_fill(elsewhere, 0), embedding)
        x.masked_fill_(elsewhere[:, None], 0)
        self.collectives.add(x)
        return x

    def add_product(self, x: Tensor, h: Tensor, weight: Tensor) -> None:
        if self.rank == 0:
            x.addmm_(h, weight)
        else:
            torch.mm(h, weight, out=x)
        self.collectives.add(x)

    def project(self, h: Tensor, head: Tensor, out: Tensor | None = None) -> Tensor:
        if out is None:
            out = h.new_empty(len(h), self.vocab_size)
        if len(h):
            parts = self.collectives.gather(torch.mm(h, head.t()))
            out.copy_(parts.transpose(0, 1).flatten(1)[:, : self.vocab_size])
        return out
