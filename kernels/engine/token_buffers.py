"""The tokens of every sequence, on the host: those of its prompt, and those that were sampled."""

import random
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from testbed.core.request import Incoming
from testbed.core.sequence import Sequence, SequenceGroup


class Owner(NamedTuple):
    """The owner of a row of logits: a group, one of its sequences, and behind how many draft
    tokens.
    """

    group: SequenceGroup
    member: int
    num_drafts: int = 0


class Part(NamedTuple):
    """The tokens of a sequence that an iteration computes.

    new: how many. num_stored: how many tokens precede them, whose K and V are stored. written: the
    slots of tokens before this position contain their K and V already, and are not written. wanted:
    tokens at the end whose logits are needed. drafts: draft tokens behind the sequence's.
    """

    seq: Sequence
    new: int
    num_stored: int
    written: int
    wanted: int
    drafts: tuple[int, ...] = ()

    @property
    def context_len(self) -> int:
        """Tokens that the last of the new ones reads."""
        return self.num_stored + self.new


class TokenBuffers:
    """Token ids by sequence id. A prompt without content ids gets random tokens that depend on seed
    and request.

    A content id covers one or more tokens (Mooncake: 512); equal content ids give equal tokens in
    every request.
    """

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self.vocab_size = vocab_size
        self.seed = seed
        self.tokens: dict[int, list[int]] = {}
        self._ready: dict[int, list[int]] = {}

    def prepare(self, requests: Iterable[Incoming]) -> None:
        """Draw the prompts of requests before they arrive: a long one takes milliseconds."""
        self._ready.update((request.request_id, self.prompt(request)) for request in requests)

    def start(self, group: SequenceGroup) -> None:
        """Add a request's sequences."""
        prompt = self._ready.pop(group.request_id, None) or self.prompt(group.request)
        for seq in group.sequences:
            self.tokens[seq.seq_id] = list(prompt)

    def end(self, group: SequenceGroup) -> None:
        """Remove a finished request's sequences."""
        for seq in group.sequences:
            del self.tokens[seq.seq_id]

    def prompt(self, request: Incoming) -> list[int]:
        """The tokens of a request's prompt."""
        if request.prompt_ids is None:
            tokens = self._random(request.request_id, request.prompt_len)
        elif request.tokens_per_id == 1:
            tokens = [token % self.vocab_size for token in request.prompt_ids]
        else:
            contents = [self._content(i, request.tokens_per_id) for i in request.prompt_ids]
            tokens = list(chain.from_iterable(contents))
        tokens[: request.registered_prefix] = self.registered_prefix(request.registered_prefix)
        return tokens[: request.prompt_len]

    def registered_prefix(self, num_tokens: int) -> list[int]:
        """The tokens of the registered prefix."""
        return self._random("prefix", num_tokens)

    def read(self, part: Part) -> list[int]:
        """The tokens of a part, all of which must exist; if logits are wanted, these are the
        newest tokens of the sequence.
        """
        tokens, end = self.tokens[part.seq.seq_id], part.context_len - len(part.drafts)
        has_tokens = len(tokens) == end if part.wanted else len(tokens) >= end
        assert has_tokens, f"{part.seq} has {len(tokens)} tokens and is to compute {end}"
        accepted = tokens[part.num_stored : end]
        return [*accepted, *part.drafts[-part.new :]] if part.drafts else accepted

    def is_late(self, part: Part) -> bool:
        """True if the part is one token, and the host does not have it yet."""
        return part.new == 1 and len(self.tokens[part.seq.seq_id]) == part.num_stored

    @lru_cache(1 << 14)  # noqa: B019  (one object a run)
    def _content(self, content_id: int, length: int) -> list[int]:
        return self._random(f"content {content_id}", length)

    def _random(self, name: object, length: int) -> list[int]:
        rng = random.Random(f"{self.seed} {name}")
        return [rng.randrange(self.vocab_size) for _ in range(length)]


class Drawn:
    """Tokens that were sampled on the device.

    takers: the sequences that get one each. tokens: on the device, int64 [num_takers]. on_host: a
    copy on the host, which is complete when the launch has ended.
    """

    def __init__(self, takers: SequenceOf[Sequence], tokens: Tensor) -> None:
        self.takers = takers
        self.tokens = tokens
        self.on_host = tokens
        if tokens.is_cuda:
            self.on_host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
            self.on_host.copy_(tokens, non_blocking=True)

    @cached_property
    def rows(self) -> dict[int, int]:
        """The row of each sequence's token, by sequence id."""
        return {seq.seq_id: row for row, seq in enumerate(self.takers)}
