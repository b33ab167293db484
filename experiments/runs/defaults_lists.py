"""The options that ship, composed in plain mappings as Hydra composes their defaults lists, in a
tenth of its time.

Hydra composes what these files do not use (`optional`, lists of options, deletions), and refuses
what it refuses.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from testbed.experiments.runs.choice_names import CONF
from testbed.experiments.runs.own_options import PACKAGE, Node, option_at, with_defaults
from testbed.run.constructor_parameters import MUST_BE_GIVEN

SELF = "_self_"
GLOBAL = "_global_"
NAME = r"(?P<name>[A-Za-z./][\w./:-]*)"
WORD = re.compile(rf"(?P<mark>\+?)(?P<group>\w+)(@(?P<package>[\w.-]+))?={NAME}")
TEXT = re.compile(r"(?P<above>/?)(?P<name>[\w.-]+)(?P<here>@_here_)?")
ITEM = re.compile(r"(?P<override>override )?(?P<group>/?\w+)(@(?P<package>[\w.]+))?")
OTHER_CHOICE = re.compile(r"\$\{(\w+)\}")
NO_NAMES = ("null", "true", "false", "nan", "inf")  # other values in Hydra's grammar


class NotPlainError(Exception):
    """Hydra composes these options, or refuses them."""


class Item(NamedTuple):
    """An item of a defaults list: an option of a group, and where its values go.

    key: by which words and other lists choose another option; empty of an item that is no choice.
    is_placed: the item says where the values go, whatever the option says.
    """

    group: str
    name: str | None
    place: str
    key: str = ""
    is_placed: bool = False
    is_override: bool = False


class Part(NamedTuple):
    """The values of one option, and where they go."""

    place: str
    values: Node


def plain_composition(name: str, words: Sequence[str]) -> DictConfig | None:
    """The values of a primary config with the options that the words choose; None if Hydra has to
    compose them.
    """
    group, _, own_name = name.rpartition("/")
    values: Node = {}
    try:
        choices = _Choices(words)
        parts = choices.parts_of(Item(group, own_name, group), choices.added)
    except NotPlainError:
        return None
    if not choices.chosen.keys() <= choices.known.keys():  # one of no list
        return None
    for place, own in parts:
        for key in reversed(place.split(".") if place else []):
            own = {key: own}
        values = _merged(values, own)
    config = OmegaConf.create(values)
    OmegaConf.set_struct(config, True)  # refuses keys that it does not have, as Hydra's does
    return config


class _Choices:
    """The options that words and defaults lists choose, by key.

    chosen: by words, and by lists in place of others; the first one counts. known: of the lists
    that were read. added: by +KEY=NAME, behind the primary config's list.
    """

    def __init__(self, words: Sequence[str]):
        self.chosen = dict[str, str | None]()
        self.known = dict[str, str | None]()
        self.added = list[Item]()
        for word in words:
            match = WORD.fullmatch(word)
            if match is None or match["name"].lower() in NO_NAMES:
                raise NotPlainError
            item = _item(match, match["name"], "", "")
            if match["mark"]:
                self.added.append(item)
            else:
                self.chosen[item.key] = item.name

    def parts_of(self, item: Item, added: Sequence[Item] = ()) -> list[Part]:
        """The values of an option and of its defaults list, in the order of merging.

        added: items behind those of the list.
        """
        if item.key in self.known:
            raise NotPlainError
        if item.key:
            self.known[item.key] = item.name
        path = f"{item.group}/{item.name}".lstrip("/")
        option = option_at(CONF, path)
        if option is None:
            raise NotPlainError
        values = with_defaults(option, path.partition("/")[0])
        package, defaults = values.pop(PACKAGE, None), values.pop("defaults", [])
        if package not in (None, GLOBAL):
            raise NotPlainError
        place = "" if package and not item.is_placed else item.place
        if not defaults and not added:
            return [Part(place, values)]
        listed = [_of_list(each, item.group, place) for each in defaults]
        if SELF not in defaults:
            listed.append(Item("", SELF, place))
        return self._parts_in([*listed, *added], values)

    def _parts_in(self, listed: Sequence[Item], own: Node) -> list[Part]:
        """The values of each item, the option's own among them. As in Hydra, the last item is read
        first, and an option whose name follows from others after them.
        """
        for item in listed:
            if item.is_override:
                self.chosen.setdefault(item.key, item.name)
        items = [item for item in listed if not item.is_override]
        parts, late = dict[Item, list[Part]](), list[Item]()
        for item in reversed(items):
            name = self.chosen.get(item.key, item.name)
            if name == SELF:
                parts[item] = [Part(item.place, own)]
            elif name is None:
                self.known[item.key], parts[item] = None, []
            elif "$" in name:
                late.append(item)
            else:
                parts[item] = self.parts_of(item._replace(name=name))
        for item in late:
            name = OTHER_CHOICE.sub(lambda other: self.known[other[1]] or "", item.name or "")
            parts[item] = self.parts_of(item._replace(name=name))
        return [part for item in items for part in parts[item]]


def _of_list(item: Any, group: str, place: str) -> Item:
    """An item as YAML has it, in the list of an option of a group whose values go to a place."""
    if isinstance(item, str):
        match = TEXT.fullmatch(item)
        if match is None:
            raise NotPlainError
        return Item("" if match["above"] else group, match["name"], place, "", bool(match["here"]))
    (key, name), *others = item.items()
    match = ITEM.fullmatch(key)
    if others or match is None or not isinstance(name, str | None):
        raise NotPlainError
    return _item(match, name, group, place)


def _item(match: re.Match[str], name: str | None, group: str, place: str) -> Item:
    """An option of a group, in the list of an option of another group."""
    named, package = match["group"], match["package"]
    path = named.lstrip("/") if named.startswith("/") or not group else f"{group}/{named}"
    final = ".".join(filter(None, (place, package or named.lstrip("/"))))
    key = path if final == path else f"{path}@{final}"
    is_override = bool(match.groupdict().get("override"))
    return Item(path, name, final, key, package is not None, is_override)


def _merged(values: Node, others: Node) -> Node:
    """The values with the others in their place, mappings in both merged likewise; a value that the
    others leave to be given stays as it is.
    """
    merged = dict(values)
    for key, value in others.items():
        if isinstance(value, dict) and isinstance(values.get(key), dict):
            merged[key] = _merged(values[key], value)
        elif value != MUST_BE_GIVEN or key not in values:
            merged[key] = value
    return merged
