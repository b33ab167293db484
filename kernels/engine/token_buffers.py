"""The token ids of every sequence: its prompt, and the output so far."""

import random
from collections.abc import Iterable
from functools import lru_cache

from testbed.core.request import Incoming
from testbed.core.sequence import Sequence, SequenceGroup


class TokenBuffers:
    """Token ids by sequence id. A prompt without content ids gets random tokens that depend on seed and request.

    A content id covers one or more tokens (Mooncake: 512); equal content ids give equal tokens in every request.
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
        prompt = self._ready.pop(group.request.request_id, None) or self.prompt(group.request)
        for seq in group.sequences:
            self.tokens[seq.seq_id] = list(prompt)

    def end(self, group: SequenceGroup) -> None:
        """Remove a finished request's sequences."""
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
        return (self.registered_prefix(request.registered_prefix) + own[request.registered_prefix :])[
            : request.prompt_len
        ]

    def registered_prefix(self, num_tokens: int) -> list[int]:
        """The tokens of the registered prefix."""
        rng = random.Random(f"{self.seed} prefix")
        return [rng.randrange(self.vocab_size) for _ in range(num_tokens)]

    def append(self, seq: Sequence, token: int) -> None:
        """Append an output token."""
        self.tokens[seq.seq_id].append(token)

    def read(self, seq: Sequence, start: int, end: int) -> list[int]:
        """Tokens start to end of a sequence, all of which must exist."""
        tokens = self.tokens[seq.seq_id][start:end]
        assert len(tokens) == end - start, f"{seq} has {len(self.tokens[seq.seq_id])} tokens, {end} were requested"
        return tokens

    def newest(self, seq: Sequence, position: int) -> int:
        """The input token of a decode step, which must be the newest."""
        tokens = self.tokens[seq.seq_id]
        assert len(tokens) == position + 1, f"{seq} has {len(tokens)} tokens and is to compute number {position}"
        return tokens[position]

    @lru_cache(1 << 14)  # noqa: B019  (one object a run)
    def _content(self, content_id: int, length: int) -> list[int]:
        rng = random.Random(f"{self.seed} content {content_id}")
        return [rng.randrange(self.vocab_size) for _ in range(length)]
