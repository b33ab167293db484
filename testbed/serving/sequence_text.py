"""The text of one sequence, as its tokens come."""

from abc import ABC, abstractmethod

from testbed.serving.stop_strings import StopStrings
from testbed.serving.tokenizer import Decoder

LENGTH, STOP = "length", "stop"


class SequenceText(ABC):
    """The answer of one sequence. reason: why it has ended, None while it has not. num_tokens: its
    tokens so far.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self.reason: str | None = None
        self.text = ""

    @abstractmethod
    def add(self, token: int | None) -> str:
        """The text that a token adds; what comes after the end adds none."""


class Words(SequenceText):
    """Numbered placeholders, a word a token, for a simulation without text. output_len: tokens of
    the answer; max_tokens: what the client allows.
    """

    def __init__(self, output_len: int, max_tokens: int) -> None:
        super().__init__()
        self._output_len = output_len
        self._end = LENGTH if output_len == max_tokens else STOP

    def add(self, token: int | None) -> str:
        self.num_tokens += 1
        if self.num_tokens == self._output_len:
            self.reason = self._end
        word = f" w{self.num_tokens}"
        self.text += word
        return word


class GeneratedText(SequenceText):
    """Text of generated tokens, until a token that ends it, a stop string or max_tokens. The token
    that ends it counts, and has no text.
    """

    def __init__(
        self, decoder: Decoder, max_tokens: int, end_ids: frozenset[int], stop: tuple[str, ...]
    ) -> None:
        super().__init__()
        self._decoder = decoder
        self._max_tokens = max_tokens
        self._end_ids = end_ids
        self._stop = StopStrings(stop)

    def add(self, token: int | None) -> str:
        if self.reason is not None or token is None:
            return ""
        self.num_tokens += 1
        if token in self._end_ids:
            self.reason = STOP
            return self._text(self._decoder.rest())
        is_last = self.num_tokens == self._max_tokens
        text = self._decoder.text(token)
        return self._text(text + self._decoder.rest() if is_last else text, is_last)

    def _text(self, text: str, is_last: bool = False) -> str:
        """The part of the text that may be sent: what could begin a stop string waits."""
        passed, is_stopped = self._stop.passed(text)
        if is_stopped:
            self.reason = STOP
        elif is_last or self.reason is not None:
            self.reason = self.reason or LENGTH
            passed += self._stop.rest()
        self.text += passed
        return passed
