"""Classes that the file of a run may name: those of `testbed list`, and what these are made of.

A file from elsewhere names what it likes, and a name is enough to import a module and to call what
it contains. So a class is looked up here before it is loaded. A plug-in is loaded if the user
names it on the command line.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any

from testbed.core.errors import InputError
from testbed.core.spelling import dotted
from testbed.experiments.runs.choice_names import CONF

OPTION = "--plug-in"
TARGET = "_target_"
NAMED = re.compile(r"\s*_target_: (?P<name>[\w.]+)")
SPECS = {
    f"testbed.core.specs.{name}" for name in ("ModelSpec", "ServerSpec", "GpuSpec", "TierSpec")
}


def check_classes(values: Any, source: object, plug_ins: Collection[str] = ()) -> None:
    """Raise InputError for a class in these plain values, at any depth, that they may not name.

    source: the file that the values are from, for the message. plug_ins: MODULE:CLASS, which the
    user names.
    """
    allowed = known_classes() | {name.replace(":", ".") for name in plug_ins}
    for key, name in class_names(values):
        if name not in allowed:
            shown = ":".join(name.rpartition(".")[::2])
            raise InputError(
                key=f"{source}: {key}",
                value=name,
                problem=(
                    f"is no class of `testbed list` ({OPTION} {shown} loads it, which runs its "
                    "code)"
                ),
            )


@cache
def known_classes() -> frozenset[str]:
    """The classes that the options of experiments/conf name, and those of their values."""
    paths = CONF.glob("*/*.yaml")
    lines = (line for path in paths for line in path.read_text(encoding="utf-8").splitlines())
    return frozenset({match["name"] for match in map(NAMED.match, lines) if match} | SPECS)


def class_names(values: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """The dotted key and the name of every class in plain values, those in lists included."""
    if isinstance(values, Mapping):
        entries = [(str(name), value) for name, value in values.items()]
    elif isinstance(values, list | tuple):
        entries = [(str(place), value) for place, value in enumerate(values)]
    else:
        return
    for name, value in entries:
        place = dotted(key, name)
        if name == TARGET and isinstance(value, str):
            yield place, value
        yield from class_names(value, place)
