"""The tokens of every sequence: what its prompt says, and what the model has answered so far."""

import random
from collections.abc import Iterable
from functools import lru_cache

from testbed.core.request import Incoming
from testbed.core.sequence import Sequence, SequenceGroup


class Streams:
    """Token ids by sequence id. A prompt without content of its own gets random ids that depend on seed and request.

    Contents are ids of one or more tokens each (Mooncake: 512); equal ids give equal tokens, whoever asks.
    """

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self.vocab_size = vocab_size
        self.seed = seed
        self.tokens: dict[int, list[int]] = {}
        self._ready: dict[int, list[int]] = {}

    def prepare(self, requests: Iterable[Incoming]) -> None:
        """Draw the prompts of requests before they come: a long one takes milliseconds."""
        self._ready.update((request.request_id, self.prompt(request)) for request in requests)

    def start(self, group: SequenceGroup) -> None:
        """A request has arrived."""
        prompt = self._ready.pop(group.request.request_id, None) or self.prompt(group.request)
        for seq in group.sequences:
            self.tokens[seq.seq_id] = list(prompt)

    def end(self, group: SequenceGroup) -> None:
        """A request has its answer."""
        for seq in group.sequences:
            del self.tokens[seq.seq_id]

    def prompt(self, request: Incoming) -> list[int]:
        """The tokens of a request's prompt."""
        if request.prompt_ids is None:
            rng = random.Random(f"{self.seed} {request.request_id}")
            own = [rng.randrange(self.vocab_size) for _ in range(request.prompt_len)]
        elif request.tokens_per_id == 1:
            own = [token % self.vocab_size for token in request.prompt_ids]
        else:
            own = [t for i in request.prompt_ids for t in self._content(i, request.tokens_per_id)]
        return (self.prefix(request.prefix) + own[request.prefix :])[: request.prompt_len]

    def prefix(self, num_tokens: int) -> list[int]:
        """The tokens of the provider's registered prefix."""
        rng = random.Random(f"{self.seed} prefix")
        return [rng.randrange(self.vocab_size) for _ in range(num_tokens)]

    def append(self, seq: Sequence, token: int) -> None:
        """The model has said one token more."""
        self.tokens[seq.seq_id].append(token)

    def read(self, seq: Sequence, start: int, end: int) -> list[int]:
        """Tokens start to end of a sequence, which has them all."""
        tokens = self.tokens[seq.seq_id][start:end]
        assert len(tokens) == end - start, f"{seq} has {len(self.tokens[seq.seq_id])} tokens, {end} were asked for"
        return tokens

    def newest(self, seq: Sequence, position: int) -> int:
        """The token that a decode step computes, which must be the newest."""
        tokens = self.tokens[seq.seq_id]
        assert len(tokens) == position + 1, f"{seq} has {len(tokens)} tokens and is to compute number {position}"
        return tokens[position]

    @lru_cache(1 << 14)  # noqa: B019  (one object a run)
    def _content(self, content_id: int, length: int) -> list[int]:
        rng = random.Random(f"{self.seed} content {content_id}")
        return [rng.randrange(self.vocab_size) for _ in range(length)]
