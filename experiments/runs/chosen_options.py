"""The values of chosen options, merged by Hydra's rules for lists of defaults in a fraction of its
time. A list of another form, and a choice that Hydra refuses, are left to Hydra.

By the rules of its documentation a word overrides a choice, else the last file that overrides it;
values are merged in the order of a list, those of the file itself at `_self_`, or last.
"""

from collections.abc import Sequence
from string import Template
from typing import Any, NamedTuple

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from testbed.experiments.runs.choice_names import CONF, GROUPS
from testbed.experiments.runs.own_options import PACKAGE, Node, option_at, with_defaults

SELF = "_self_"
GLOBAL = "_global_"  # the place of a file that sets values of several groups
HERE = "_here_"
OVERRIDE = "override "
MISSING = "???"
INTERPOLATION = "${"


class LeftToHydra(Exception):
    """Hydra composes these choices, or refuses them."""


class Entry(NamedTuple):
    """An entry of a list of defaults.

    group: of the option, empty if it is in none; name: None selects nothing; place: of its values,
    as a dotted key; is_placed: its file does not say the place; key: of the choice, empty if none.
    """

    group: str
    name: str | None
    place: str
    is_placed: bool = False
    key: str = ""
    is_override: bool = False


class Part(NamedTuple):
    """Values to merge, and their place."""

    place: str
    values: Node


def composed_options(name: str, words: Sequence[Override]) -> DictConfig | None:
    """The values of a primary config with these choices; None if they are left to Hydra."""
    group, _, file = name.rpartition("/")
    values: Node = {}
    try:
        choices = _Choices(words)
        for place, more in choices.parts(Entry(group, file, group), choices.added):
            for key in reversed(place.split(".") if place else ()):
                more = {key: more}
            values = _merged(values, more)
    except LeftToHydra:
        return None
    if not choices.overrides.keys() <= choices.made.keys():
        return None
    config = OmegaConf.create(values)
    OmegaConf.set_struct(config, True)
    return config


class _Choices:
    """Choices by key: overrides of words and files, and those that are made."""

    def __init__(self, words: Sequence[Override]) -> None:
        self.added = [
            _choice(word.key_or_group, _name_of(word), "", word.package)
            for word in words
            if word.is_add()
        ]
        self.overrides: dict[str, str | None] = {
            word.get_key_element(): _name_of(word) for word in words if not word.is_add()
        }
        self.made = dict[str, str | None]()

    def parts(self, entry: Entry, added: Sequence[Entry] = ()) -> list[Part]:
        """The values of an option and of its list, in the order of merging; added: to the list of
        the primary config. Raises LeftToHydra if the choice is made twice.
        """
        if entry.key in self.made:
            raise LeftToHydra
        if entry.key:
            self.made[entry.key] = entry.name
        if entry.name is None:
            return []
        option = option_at(CONF, f"{entry.group}/{entry.name}".lstrip("/"))
        if option is None:
            raise LeftToHydra
        values = with_defaults(option, entry.group or entry.name)
        if values.pop(PACKAGE, GLOBAL) != GLOBAL:
            raise LeftToHydra
        place = "" if PACKAGE in option and not entry.is_placed else entry.place
        defaults = values.pop("defaults", ())
        if not (defaults or added):
            return [Part(place, values)]
        own = Entry("", SELF, place)
        entries = [own if item == SELF else _entry(item, entry.group, place) for item in defaults]
        if own not in entries:
            if added:
                raise LeftToHydra
            entries.append(own)
        return self._parts_of_list([*entries, *added], Part(place, values))

    def _parts_of_list(self, entries: Sequence[Entry], own: Part) -> list[Part]:
        """From the end of the list, since later options override earlier choices; names that
        follow from another choice, such as of-${model}, come after those of all others.
        """
        for entry in entries:
            if entry.is_override:
                self.overrides.setdefault(entry.key, entry.name)
        parts = dict[int, list[Part]]()
        following = dict[int, Entry]()
        for number, entry in reversed([*enumerate(entries)]):
            name = self.overrides.get(entry.key, entry.name)
            if name == SELF:
                parts[number] = [own]
            elif INTERPOLATION in (name or ""):
                following[number] = entry._replace(name=name)
            elif not entry.is_override:
                parts[number] = self.parts(entry._replace(name=name))
        for number, entry in following.items():
            name = Template(entry.name or "").safe_substitute(self.made)
            if INTERPOLATION in name:
                raise LeftToHydra
            parts[number] = self.parts(entry._replace(name=name))
        return [part for number in sorted(parts) for part in parts[number]]


def _name_of(word: Override) -> str:
    """The name that a word chooses."""
    name, group = word.value(), word.key_or_group
    is_group = group in (*GROUPS, "engine") or (CONF / group).is_dir()
    is_plain = not (word.is_delete() or word.is_force_add())
    if isinstance(name, str) and INTERPOLATION not in name and is_group and is_plain:
        return name
    raise LeftToHydra


def _entry(item: Any, group: str, above: str) -> Entry:
    """An entry of the list of an option of a group; above: the place of the option's values."""
    if isinstance(item, str):
        path, at, package = item.partition("@")
        name = path.removeprefix("/")
        if set("/ ") & set(name) or INTERPOLATION in name:
            raise LeftToHydra
        entry = _choice("" if path.startswith("/") else group, name, above, package or HERE)
        return entry._replace(key="", is_placed=bool(at))
    ((key, name),) = item.items()
    path, at, package = key.removeprefix(OVERRIDE).partition("@")
    if group and not path.startswith("/"):
        raise LeftToHydra
    entry = _choice(path.removeprefix("/"), name, above, package if at else None)
    return entry._replace(is_override=key.startswith(OVERRIDE))


def _choice(group: str, name: str | None, above: str, package: str | None) -> Entry:
    """A choice of a group's option; package: below the place of the list, the group's by default.

    Raises LeftToHydra for a path of groups and for several options.
    """
    usual = group if package is None else package
    if set("/ ") & set(group) or not isinstance(name, str | None) or GLOBAL in usual:
        raise LeftToHydra
    place = above if usual == HERE else f"{above}.{usual}".lstrip(".")
    key = group if place == group else f"{group}@{place or GLOBAL}"
    return Entry(group, name, place, package is not None, key)


def _merged(values: Node, more: Node) -> Node:
    """Values as OmegaConf merges them: mappings by key, and other values replace each other."""
    merged = {**values}
    for key, value in more.items():
        before = merged.get(key)
        if not isinstance(value, dict):
            merged[key] = before if value == MISSING and key in merged else value
        elif isinstance(before, str) and INTERPOLATION in before:
            raise LeftToHydra
        else:
            merged[key] = _merged(before, value) if isinstance(before, dict) else value
    return merged
