"""Draws of a request's tokens."""

from typing import NamedTuple


class Draws(NamedTuple):
    """Draws of the most likely tokens whose probabilities sum to top_p, at a temperature. seed:
    None for the server's own draws.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
