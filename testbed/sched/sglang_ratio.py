"""The share of their declared outputs that SGLang expects running requests to generate."""

from collections.abc import Collection

from testbed.core.sequence import SequenceGroup

INITIAL = 0.7  # SGLANG_INIT_NEW_TOKEN_RATIO
LEAST = 0.14  # SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR, of the initial one
STEPS_AHEAD = 20  # SGLANG_RETRACT_DECODE_STEPS


class NewTokenRatio:
    """It decays with every decode that has its memory, and jumps at a retraction
    (new_token_ratio_tracker.py).
    """

    def __init__(self, conservativeness: float, decay_steps: int) -> None:
        self._initial = min(INITIAL * conservativeness, 1.0)
        self._least = min(self._initial * LEAST, 1.0)
        self._decay = (self._initial - self._least) / decay_steps
        self.current = self._initial

    def decay(self, steps: int) -> None:
        """So many decodes had their memory."""
        while steps and self.current > self._least:
            self.current = max(self.current - self._decay, self._least)
            steps -= 1

    def reset(self) -> None:
        """The server is idle."""
        self.current = self._initial

    def retracted(self, left: Collection[SequenceGroup], generated: int, declared: int) -> None:
        """After a retraction `left` have generated `generated` of the `declared` tokens."""
        self.current = min(1.0, (generated + STEPS_AHEAD * len(left)) / (declared + 1))
