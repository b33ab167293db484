"""Words of a command line that change a configuration, such as policy=paged or ++seed=5."""

import re
from collections.abc import Sequence

VALUE = re.compile(r"[+~]*[a-z_][\w.@/]*=")


def key_of(word: str) -> str:
    """The key that the word sets or takes out; signs before it (`+`, `++`, `~`) only say how."""
    return word.partition("=")[0].lstrip("+~")


def words_that_count(words: Sequence[str]) -> list[str]:
    """The words without the values that a later word of the same key replaces."""
    last = {key_of(word): place for place, word in enumerate(words)}
    return [
        word
        for place, word in enumerate(words)
        if not VALUE.match(word) or last[key_of(word)] == place
    ]


def displaced_words(words: Sequence[str]) -> list[str]:
    """The notes on values that a later word of the same key replaces by another value."""
    last = {key_of(word): word for word in words if VALUE.match(word)}
    return [
        f"{last[key_of(word)]} in place of {word}: the last one counts"
        for word in dict.fromkeys(words)
        if VALUE.match(word) and last[key_of(word)].lstrip("+") != word.lstrip("+")
    ]
