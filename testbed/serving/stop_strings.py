"""Stop strings in a text that comes in pieces."""


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
