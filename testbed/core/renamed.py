"""Names that 0.2.0 replaced (renamed.toml), and refusals that give the new one where an old one
would be ignored.
"""

import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from testbed.core.errors import InputError

SINCE = "0.2.0"
TABLE = Path(__file__).with_name("renamed.toml")


@cache
def kinds() -> Mapping[str, Mapping[str, str]]:
    """For each kind of name (`option`, `column`, `policy`, ...) the new names by old ones."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def new_name(kind: str, name: str) -> str | None:
    """What a name of that kind is called now; None of one that was not renamed."""
    return kinds()[kind].get(name)


def advice(new: str) -> str:
    """How a refusal ends that names an old name first."""
    return f"is called {new} since {SINCE} (testbed migrate FILE renames it, or names the line)"


def check_columns(path: object, header: Iterable[str], wanted: Iterable[str] | None = None) -> None:
    """Raise InputError where a CSV has one of the `wanted` columns (None: any) by its old name, not
    by the new one.
    """
    names = set(header)
    for old, new in kinds()["column"].items():
        if old in names and new not in names and (wanted is None or new in set(wanted)):
            raise InputError(f"{path}: column {old!r} {advice(repr(new))}")


def check_members(kind: str, plug_in: object) -> None:
    """Raise InputError where a plug-in's class defines a method by its old name: nothing would ever
    call it.
    """
    for one in type(plug_in).__mro__:
        for old, new in kinds()[kind].items():
            if callable(vars(one).get(old)):
                named = f"{one.__module__}.{one.__qualname__}.{old}"
                raise InputError(
                    f"{kind} defines {named}: {old}() {advice(f'{new}()')}; a new method that is "
                    "called so needs another name"
                )
