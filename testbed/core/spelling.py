"""Suggestions for misspelt names and keys."""

from collections.abc import Iterable

from testbed.core.errors import InputError

LIKE = 3  # models that a message offers for one without a shape


def did_you_mean(name: str, choices: Iterable[str], most: int = 1) -> str:
    """A question that ends a message, with as many of the names that are like this one, or nothing
    if none is.
    """
    from difflib import get_close_matches  # which a word that is known does not need

    names = list(choices)
    longer = [other for other in names if name and other.startswith((f"{name}-", f"{name}_"))]
    close = longer or get_close_matches(name, names, n=most)  # h100 begins h100-80gb
    return f"; did you mean {' or '.join(close[:most])}?" if close else ""


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
