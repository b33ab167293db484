"""Suggestions for misspelt names and keys."""

from collections.abc import Iterable, Sequence

from testbed.core.errors import InputError

MOST_BEGUN = 4


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """A question that ends a message, with the names that are like this one, or nothing if none
    is.
    """
    return question(near_names(name, choices))


def near_names(name: str, choices: Iterable[str], most: int = 1) -> list[str]:
    """The names that are like this one in any case: equal, else those that it begins, else
    `most` of like letters.
    """
    from difflib import get_close_matches  # which a word that is known does not need

    folded = {other.casefold(): other for other in choices}
    low = name.casefold()
    if low in folded:
        return [folded[low]]
    longer = [other for other in folded if low and other.startswith((f"{low}-", f"{low}_"))]
    # a100 begins a100-40gb and a100-80gb, between which the user decides
    close = longer[: max(most, MOST_BEGUN)] or get_close_matches(low, folded, n=most)
    return [folded[other] for other in close]


def question(names: Sequence[str]) -> str:
    """The end of a message that asks for one of these; nothing without any."""
    return f"; did you mean {' or '.join(names)}?" if names else ""


class UnknownKey(InputError):
    """A key that nothing reads. near: the known key that is most like it; None: none is."""

    def __init__(self, key: str, choices: Iterable[str]) -> None:
        self.near = nearest(key, choices)
        hint = f"; did you mean {self.near}?" if self.near else ""
        remedy = "testbed run --values shows all keys"
        super().__init__(key=key, problem=f"nothing reads it{hint}", remedy=remedy)


def nearest(key: str, choices: Iterable[str]) -> str | None:
    """The known key of the same last part, else the one most like it in its group, else of all."""
    from difflib import get_close_matches

    names = list(choices)
    group, _, last = key.rpartition(".")
    same = [name for name in names if name.rpartition(".")[2] == last]
    in_group = {name.rpartition(".")[2]: name for name in names if name.rpartition(".")[0] == group}
    close = [in_group[match] for match in get_close_matches(last, in_group, 1)]
    alike = [name for name in names if ("." in name) == ("." in key)]
    return next(iter([*same, *close, *get_close_matches(key, alike, 1, 0.8)]), None)


def dotted(group: str, name: object) -> str:
    """The key of a value in a group of values; the top has no name."""
    return f"{group}.{name}" if group else str(name)
