"""Facts of the scheduler that a memory policy may know; a policy with a parameter of this kind gets
it when a run is built.
"""

from enum import Enum
from typing import NamedTuple


class Batching(NamedTuple):
    """The iterations of a scheduler.

    max_num_batched_tokens: of one. plans_ahead: the next one is planned while one runs.
    """

    max_num_batched_tokens: int
    plans_ahead: bool


class StateCaching(NamedTuple):
    """Of a model's states those at the ends of chunks are kept (mamba_cache_mode=align).

    alignment: the kernel exports a state within a chunk, at multiples of this number of tokens;
    None: it exports none.
    """

    alignment: int | None = None


class Drafts(Enum):
    """The drafter of the tokens that a run verifies."""

    NONE = "none"
    OF_TOKENS = "of tokens"
    OF_HIDDEN_STATES = "of hidden states"
