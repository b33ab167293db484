"""Lengths of the simulated answers."""

import numpy as np

from testbed.traces.length_model import LengthModel


class OutputLengths:
    """The answer has max_tokens tokens with ignore_eos or without a model; else the smaller of
    max_tokens and a draw from the model's output lengths.

    The draw depends on the seed and on the request's number alone. name: a length model that ships.
    """

    def __init__(self, name: str | None, seed: int) -> None:
        self._model = None if name is None else LengthModel.load(name)
        self._seed = seed

    def draw(self, request_id: int, max_tokens: int, min_tokens: int, ignore_eos: bool) -> int:
        """The output tokens of each sequence of a request: max_tokens with ignore_eos or without a
        length model, else a draw of at least min_tokens and at most max_tokens.
        """
        if self._model is None or ignore_eos:
            return max_tokens
        uniform = np.random.default_rng([self._seed, request_id]).random(2)
        _, outputs = self._model.at(uniform[:1], uniform[1:])
        return min(max_tokens, max(int(outputs[0]), min_tokens, 1))
