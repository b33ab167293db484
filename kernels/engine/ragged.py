"""The flat arrays of one iteration: tokens of prompts first, then one token of each decoding sequence."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kernels.engine.layout import Ints, Place
from kernels.engine.streams import Streams
from kernels.engine.tables import Tables
from testbed.core.sequence import Sequence


class Part(NamedTuple):
    """`new` tokens of a sequence behind `stored` ones; `wanted` says that the last one's logits are.

    Slots of tokens before position `written` hold their K and V already, and are left alone.
    """

    seq: Sequence
    new: int
    stored: int
    written: int
    wanted: bool

    @property
    def context_len(self) -> int:
        """Tokens that the last of the new ones reads."""
        return self.stored + self.new


@dataclass(frozen=True, slots=True)
class Ragged:
    """tokens, positions: int64 [num_tokens]; wanted: the rows whose logits are asked for; places: one a part.

    The first num_prompts parts are prompts, num_prompt_tokens tokens together; every other part is one token.
    """

    parts: list[Part]
    num_prompts: int
    num_prompt_tokens: int
    tokens: Ints
    positions: Ints
    wanted: Ints
    places: list[Place]

    @property
    def query_starts(self) -> Ints:
        """The first row of each part, and the number of rows."""
        return np.concatenate([[0], np.cumsum([part.new for part in self.parts])])


def ragged(prompts: list[Part], decodes: list[Part], streams: Streams, tables: Tables) -> Ragged:
    """The arrays of these parts."""
    parts = prompts + decodes
    positions = [np.arange(part.stored, part.context_len) for part in prompts]
    tokens = [streams.read(part.seq, part.stored, part.context_len) for part in prompts]
    ends = np.cumsum([part.new for part in parts]) - 1
    return Ragged(
        parts,
        len(prompts),
        sum(part.new for part in prompts),
        np.array([*_flat(tokens), *(_decoded(part, streams) for part in decodes)], np.int64),
        np.concatenate([*positions, [part.stored for part in decodes]]).astype(np.int64),
        ends[[part.wanted for part in parts]],
        [tables.place(part.seq, part.context_len) for part in parts],
    )


def _decoded(part: Part, streams: Streams) -> int:
    """The newest token of a sequence; of padding one that it has stored."""
    if part.wanted:
        return streams.newest(part.seq, part.stored)
    return streams.read(part.seq, part.stored, part.written)[0]


def _flat(lists: list[list[int]]) -> list[int]:
    return [x for one in lists for x in one]
