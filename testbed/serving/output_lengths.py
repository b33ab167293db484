"""Lengths of the simulated answers."""

import numpy as np

from testbed.traces.length_model import LengthModel

OF_CHATS = "sharegpt"


class OutputLengths:
    """Lengths of answers: drawn from a length model, or as long as their request allows.

    A real model ends an answer by itself, which no simulation can. With the name of a length model
    that ships, every answer is drawn from it; without one only answers that their request does not
    bound, from OF_CHATS. Answers with ignore_eos are never drawn. A draw depends on the seed and on
    the request's number alone.
    """

    def __init__(self, name: str | None, seed: int) -> None:
        self._name = name
        self._seed = seed
        self._model = LengthModel.load(name or OF_CHATS)

    def drawn_from(self, *, is_bounded: bool, ignore_eos: bool) -> str | None:
        """The length model of such a request's answer; None if it is as long as it may be.
        is_bounded: the request gives the most tokens.
        """
        if ignore_eos or (is_bounded and self._name is None):
            return None
        return self._name or OF_CHATS

    def draw(self, request_id: int, max_tokens: int, min_tokens: int) -> int:
        """A drawn length of each sequence of a request, at least min_tokens, at most max_tokens."""
        uniform = np.random.default_rng([self._seed, request_id]).random(2)
        _, outputs = self._model.at(uniform[:1], uniform[1:])
        return min(max_tokens, max(int(outputs[0]), min_tokens, 1))
