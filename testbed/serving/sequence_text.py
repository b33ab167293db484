"""The text of one sequence, as its tokens come, up to a stop string."""

from abc import ABC, abstractmethod

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


class StopStrings:
    """Passes text on until the first stop string. Text that could begin one is held back."""

    def __init__(self, strings: tuple[str, ...]) -> None:
        self._strings = strings
        self._held = ""

    def passed(self, text: str) -> tuple[str, bool]:
        """The text that may be sent, and whether a stop string came behind it."""
        self._held += text
        places = [self._held.find(string) for string in self._strings]
        ends = [place for place in places if place >= 0]
        end = min(ends) if ends else len(self._held) - self._num_held()
        passed, self._held = self._held[:end], self._held[end:]
        return passed, bool(ends)

    def rest(self) -> str:
        """The text that is held, at its end."""
        rest, self._held = self._held, ""
        return rest

    def _num_held(self) -> int:
        """Characters at the end of the text that could begin a stop string."""
        return max((overlap(self._held, string) for string in self._strings), default=0)


def overlap(text: str, string: str) -> int:
    """The most characters at the end of the text with which the string begins, short of all."""
    longest = min(len(text), len(string) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(string[:n])), 0)
