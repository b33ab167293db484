"""Options that are classes of the user's own: MODULE:CLASS, an entry point, and `custom`."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from testbed.experiments.runs.choice_names import CUSTOM, GROUPS, names_of
from testbed.run.trusted import CLASS

PLAIN = re.compile(r"[\w.-]+")


def option_names(value: str) -> Iterator[str]:
    """The plain names and classes in the value of an override, which may be a sweep over several.

    Other forms are left to Hydra.
    """
    names = (name.strip() for name in value.split(","))
    return (name for name in names if PLAIN.fullmatch(name) or CLASS.fullmatch(name))


def own_class_nodes(options: Mapping[str, str], folders: Sequence[Path]) -> set[str]:
    """The nodes of the config that such classes fill, such as `policy` and `policy.eviction`.

    options: what is selected, by its key.
    """
    nodes = set[str]()
    for key, value in options.items():
        group, _, package = key.partition("@")
        if group in GROUPS:
            shipped = {*names_of(group, folders), "null"} - {CUSTOM}
            if not shipped.issuperset(option_names(value)):
                nodes.add(package or group)
    return nodes


def sets_parameter(key: str, nodes: Collection[str]) -> bool:
    """Whether a key is a parameter of such a class. No file lists these, and Hydra sets a key that
    no file lists only where it is told to add it.
    """
    return key.rpartition(".")[0] in nodes


def as_class(name: str) -> str:
    """How a class would be named, behind the options that an unknown name might have meant."""
    module, _, last = name.rpartition(".")
    return f" (a class is written MODULE:CLASS, such as {module or 'my_module'}:{last})"
