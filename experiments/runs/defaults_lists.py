"""The order in which the values of chosen options count: Hydra's rules for defaults lists, as far
as the options that ship use them. Raises `NeedsHydra` for all else, and for what Hydra refuses.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Node = dict[str, Any]
WORD = re.compile(r"(?P<added>\+?)(?P<group>[a-z][\w/]*(@[a-z][\w.]*)?)=(?P<name>[A-Za-z][\w.:-]*)")
LITERALS = ("null", "true", "false", "inf", "nan")  # no names to Hydra
CHOSEN = re.compile(r"\$\{(?P<key>\w+)\}")  # in a name, that of another group's option
DEFAULTS = "defaults"
PACKAGE = "@package"  # a comment before all values: where a file places them
SELF, OVERRIDE, HERE, EVERYWHERE = "_self_", "override", "_here_", "_global_"


class NeedsHydra(Exception):
    """Options that only Hydra composes or refuses."""


class Entry(NamedTuple):
    """An entry of a defaults list. folder, name: of the option; place: of its values, which the
    option may change unless the entry states it; key: by which another option is chosen, if any.
    """

    folder: str
    name: str | None
    place: str
    key: str | None = None
    states_place: bool = False
    is_override: bool = False

    @property
    def path(self) -> str:
        return joined("/", self.folder, self.name or "")


class Placed(NamedTuple):
    """Values and their place, a dotted key; of the whole configuration, an empty one."""

    values: Node
    place: str


class Options:
    """The options that words choose. option_at: the values of an option by its path, and None if
    there is none.
    """

    def __init__(self, words: Sequence[str], option_at: Callable[[str], Node | None]) -> None:
        read = [_read(word) for word in words]
        self._added = [entry for entry in read if not entry.is_override]
        self._chosen = {entry.key: entry.name for entry in read if entry.is_override}
        self._unused = set(self._chosen)
        self._known = dict[str | None, str | None]()
        self._is_closed = False
        self._option_at = option_at

    def in_order(self, name: str) -> list[Placed]:
        """The values of the primary config and of all options, those that count more behind."""
        primary = _of_item(name, "", "")
        if primary.folder and self._added:  # whose groups would be those of the folder
            raise NeedsHydra
        parts = self._expanded(primary, self._added)
        if self._unused:
            raise NeedsHydra
        return parts

    def _expanded(self, option: Entry, added: Sequence[Entry] = ()) -> list[Placed]:
        """An option's values among those of its defaults. The last default comes first, since it
        may override one before it; those that depend on others come when these are known.
        """
        values, place = self._read(option)
        entries = [*_entries(values.pop(DEFAULTS, []), option.folder, place), *added]
        entries = self._without_overrides(entries)
        depends = {index for index, entry in enumerate(entries) if "${" in str(entry.name)}
        parts = dict[int, list[Placed]]()
        for index in sorted(range(len(entries)), key=lambda index: (index in depends, -index)):
            self._is_closed |= index in depends
            is_self = entries[index].name == SELF
            parts[index] = [Placed(values, place)] if is_self else self._chosen_for(entries[index])
        return [part for index in sorted(parts) for part in parts[index]]

    def _read(self, option: Entry) -> tuple[Node, str]:
        """The values of an option, with its defaults, and their place."""
        values = self._option_at(option.path)
        if values is None:
            raise NeedsHydra
        values = dict(values)
        package = values.pop(PACKAGE, None)
        if package not in (None, EVERYWHERE):
            raise NeedsHydra
        is_moved = package == EVERYWHERE and not option.states_place
        return values, "" if is_moved else option.place

    def _without_overrides(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries that choose options; what the others override is kept, unless words or an
        option around this one override it too.
        """
        for entry in entries:
            if entry.is_override and self._is_closed:
                raise NeedsHydra
            if entry.is_override and entry.key not in self._chosen:
                self._chosen[entry.key] = entry.name
                self._unused.add(entry.key)
        return [entry for entry in entries if not entry.is_override]

    def _chosen_for(self, entry: Entry) -> list[Placed]:
        """The values of the option that is chosen for an entry; none for null."""
        if entry.key in self._chosen:
            self._unused.discard(entry.key)
            entry = entry._replace(name=self._chosen[entry.key])
        if entry.key is not None:
            entry = entry._replace(name=self._resolved(entry.name))
            if entry.key in self._known:
                raise NeedsHydra
            self._known[entry.key] = entry.name
        return [] if entry.name is None else self._expanded(entry)

    def _resolved(self, name: str | None) -> str | None:
        """The name with those of other options in place of `${GROUP}`."""
        if name is None or "${" not in name:
            return name
        return CHOSEN.sub(lambda match: self._name_of(match["key"]), name)

    def _name_of(self, key: str) -> str:
        name = self._known.get(key)
        if name is None:
            raise NeedsHydra
        return name


def _read(word: str) -> Entry:
    """The entry that a word adds, or the one that it overrides."""
    match = WORD.fullmatch(word)
    if match is None or match["name"].lower() in LITERALS:
        raise NeedsHydra
    if match["added"]:
        return _entry(match["group"], match["name"], "", "")
    return Entry("", match["name"], "", key=match["group"], is_override=True)


def _entries(defaults: Any, folder: str, place: str) -> list[Entry]:
    """The entries of a defaults list of an option in this folder, whose values are at this place;
    its own values count most if it does not state where they stand.
    """
    entries = [_of_item(item, folder, place) for item in defaults]
    if all(entry.name != SELF for entry in entries):
        entries.append(Entry(folder, SELF, place))
    return entries


def _of_item(item: Any, folder: str, place: str) -> Entry:
    """The entry of an item: PATH@PLACE, of a file, or {GROUP@PLACE: NAME}, behind `override`."""
    if isinstance(item, str):
        path, at, own_place = item.partition("@")
        above, slash, name = path.rpartition("/")
        entry = _entry(f"{above or slash}{at}{own_place}", name, folder, place)
        return entry._replace(key=None)
    [(words, name)] = item.items()
    *signs, group = words.split(" ")
    if signs not in ([], [OVERRIDE]) or not isinstance(name, str | None):
        raise NeedsHydra
    return _entry(group, name, folder, place)._replace(is_override=bool(signs))


def _entry(group: str, name: str | None, folder: str, place: str) -> Entry:
    """An entry for an option of a group, which is relative to the folder unless it begins with a
    slash; `group@place` states the place, relative to that of the list.
    """
    path, at, stated = group.partition("@")
    within = path.removeprefix("/")
    whole = within if path.startswith("/") else joined("/", folder, within)
    if stated.startswith("_") and stated != HERE:
        raise NeedsHydra
    own = stated.replace(HERE, "") if at else within.replace("/", ".")
    final, usual = joined(".", place, own), whole.replace("/", ".")
    key = whole if final == usual else f"{whole}@{final or EVERYWHERE}"
    return Entry(whole, name, final, key, states_place=bool(at))


def joined(mark: str, *parts: str) -> str:
    """The parts that are not empty, with the mark between them."""
    return mark.join(part for part in parts if part)
