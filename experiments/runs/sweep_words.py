"""The points of a sweep: every combination of the values that words list in Hydra's grammar."""

from collections.abc import Sequence
from itertools import product

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from testbed.core.errors import InputError
from testbed.experiments.runs.words import FOLDER, WITH_MARKS
from testbed.run.override_words import key_of


def sweep_points(words: Sequence[str]) -> list[tuple[str, ...]]:
    """The words of each point, in the order of the words: policy=a,b, seed=range(3), choice(1,2).

    Raises InputError for a word that lists no values, such as an interval.
    """
    return list(product(*map(values_of, words)))


def values_of(word: str) -> list[str]:
    """The word with each of its values."""
    if word.startswith(("-", FOLDER)) or key_of(word) in WITH_MARKS:
        return [word]
    override = _parsed(word)
    if override is None or not override.is_sweep_override():
        return [word]
    if not override.is_discrete_sweep():
        raise InputError(f"{word}: lists no values (give them with commas between)")
    key = word.partition("=")[0]
    # Hydra writes a colon, as of MODULE:CLASS, with a backslash before it
    values = (value.replace("\\:", ":") for value in override.sweep_string_iterator())
    return [f"{key}={value}" for value in dict.fromkeys(values)]


def _parsed(word: str) -> Override | None:
    """The word as Hydra reads it; None where it is no override, which composing reports."""
    try:
        return OverridesParser.create().parse_overrides([word])[0]
    except HydraException:
        return None
