"""The points of a sweep: every combination of the values that words list in Hydra's grammar."""

from collections.abc import Iterator, Sequence
from itertools import product

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException

from testbed.core.errors import InputError
from testbed.experiments.runs.choice_names import CUSTOM, GROUPS, names_of
from testbed.experiments.runs.words import WITH_MARKS
from testbed.experiments.vllm_server.release_words import quoted
from testbed.run.override_words import key_of

WITHOUT_PREFILL = "prefill_replicas=null"


def sweep_points(words: Sequence[str]) -> list[tuple[str, ...]]:
    """The words of each point, in the order of the words: policy=a,b, seed=range(3), choice(1,2).

    The points without prefill apart, of a sweep over prefill_replicas=null,N, have no handover.
    Raises InputError for a word that lists no values, such as an interval.
    """
    choices = [*map(values_of, words)]
    points = product(*choices)
    if not any(len(values) > 1 and WITHOUT_PREFILL in values for values in choices):
        return list(points)
    return list(dict.fromkeys(map(_without_handover, points)))


def _without_handover(point: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a point, without a hand-over if no engine prefills for others."""
    if WITHOUT_PREFILL not in point:
        return point
    return tuple(word for word in point if key_of(word).partition(".")[0] != "handover")


def values_of(word: str) -> list[str]:
    """The word with each of its values."""
    if word.startswith("-") or key_of(word) in WITH_MARKS:
        return [word]
    override = _parsed(quoted(word))
    if override is None or not override.is_sweep_override():
        return [word]
    key = word.partition("=")[0]
    return [f"{key}={value}" for value in dict.fromkeys(_listed(override))]


def _listed(override: Override) -> Iterator[str]:
    """The values of a sweep, as words have them; those of glob(...) are options of the group."""
    group, pattern = override.key_or_group, override.value()
    if isinstance(pattern, Glob) and group in GROUPS:
        yield from pattern.filter([name for name in names_of(group) if name != CUSTOM])
    elif isinstance(pattern, Glob) or not override.is_discrete_sweep():
        raise InputError(
            key=override.input_line or group,
            problem="lists no values",
            remedy="give them with commas between",
        )
    else:  # Hydra writes a colon, as of MODULE:CLASS, with a backslash before it
        yield from (text.replace("\\:", ":") for text in override.sweep_string_iterator())


def _parsed(word: str) -> Override | None:
    """The word as Hydra reads it; None if it is no override, which composing reports."""
    try:
        return OverridesParser.create().parse_overrides([word])[0]
    except HydraException:
        return None
