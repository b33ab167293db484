"""Entrants of the arena: eviction orders, memory policies, rules for tiers, schedulers and routers,
by name, MODULE:CLASS or FILE.py:CLASS.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from testbed.core.content_hash import content_hash
from testbed.core.errors import InputError
from testbed.core.spelling import did_you_mean
from testbed.experiments.runs.choice_names import KEYS, names_of
from testbed.fleet.routers.router import Router
from testbed.memory.policy import MemoryPolicy
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.tiers.load_rules import LoadRule
from testbed.memory.tiers.store_rules import StoreRule
from testbed.run.parts import locate
from testbed.run.plug_in_sources import plug_in_files
from testbed.sched.scheduler import Scheduler

EVICTION, POLICY, SCHEDULER, ROUTER = "eviction", "policy", "scheduler", "router"
STORE, LOAD = "store", "load"
KINDS: Mapping[str, type] = {
    EVICTION: EvictionOrder,
    POLICY: MemoryPolicy,
    SCHEDULER: Scheduler,
    ROUTER: Router,
    STORE: StoreRule,
    LOAD: LoadRule,
}
PARAMETERS_OF = {  # the keys of their parameters
    EVICTION: "policy.eviction",
    STORE: "policy.store",
    LOAD: "policy.load",
}
REPLICAS = 4  # engines behind a router
FILE_MARK = ".py:"


@dataclass(frozen=True)
class Entrant:
    """One line of the table.

    name: as it was given. kind: a group of `testbed list`. words: its overrides, the first chooses
    its class, the others are parameters. folder: of its FILE.py, "" if it has none. source: a hash
    of its files, "" for a part that ships. is_infinite: a bound, whose pool has room for the whole
    working set beside the others' pool. has_tier: it plays with DRAM below the pool.
    """

    name: str
    kind: str
    words: tuple[str, ...]
    folder: str = ""
    source: str = ""
    is_infinite: bool = False
    has_tier: bool = False

    @property
    def target(self) -> str | None:
        """MODULE:CLASS of a plug-in; None for a part that ships."""
        chosen = self.words[0].partition("=")[2]
        return chosen if ":" in chosen else None

    @property
    def resources(self) -> str:
        """The memory and engines that it has besides one pool, in words; empty for none."""
        if self.kind == ROUTER:
            return f"{REPLICAS} engines"
        return "DRAM tier" if self.has_tier else ""


def entrant_of(text: str) -> Entrant:
    """The entrant that a text names: NAME, GROUP=NAME, MODULE:CLASS or FILE.py:CLASS, each with
    parameters behind commas if there are any (lru_k,k=3).

    A class is imported, to see of which kind it is, so this belongs into a process of its own.
    Raises InputError for any other text.
    """
    chosen, *parameters = _parts(text)
    entrant = replace(_plain_entrant(chosen), name=text)
    above = PARAMETERS_OF.get(entrant.kind, entrant.kind)
    return replace(
        entrant, words=(*entrant.words, *[f"{above}.{parameter}" for parameter in parameters])
    )


def _parts(text: str) -> list[str]:
    """The parts of a text between commas that are in no table or list."""
    depth, parts = 0, [""]
    for letter in text:
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def values_of(entrant: Entrant) -> dict[str, Any]:
    """The values of an entrant's parameters, by name."""
    overrides = OverridesParser.create().parse_overrides([*entrant.words[1:]])
    return {over.key_or_group.rpartition(".")[2]: over.value() for over in overrides}


def check_named(text: str) -> None:
    """Raise InputError for the text of an entrant that names no part and no file. Classes, which
    would be imported, are left to `entrant_of`.
    """
    chosen = _parts(text)[0]
    name = _group_and_name(chosen)[1]
    if FILE_MARK in name:
        _path_of(name)
    elif not is_class(text):
        _plain_entrant(chosen)


def is_class(text: str) -> bool:
    """True for the text of an entrant that names a class, and no part that ships."""
    return ":" in _group_and_name(_parts(text)[0])[1]


def _group_and_name(text: str) -> tuple[str, str]:
    head, equals, tail = text.partition("=")
    return (head, tail) if equals and head in KINDS else ("", text)


def _plain_entrant(text: str) -> Entrant:
    """The entrant of a text without parameters."""
    group, name = _group_and_name(text)
    if FILE_MARK in name:
        return _of_file(name)
    if ":" in name:
        return _of_class(name, name)
    kinds = [group] if group else [kind for kind in KINDS if name in names_of(kind)]
    if len(kinds) != 1 or name not in names_of(kinds[0]):
        raise InputError(key=text, problem=_problem(name, kinds))
    return Entrant(text, kinds[0], _words(kinds[0], name))


def _problem(name: str, kinds: Sequence[str]) -> str:
    """The fault of a name."""
    if len(kinds) > 1:
        return f"is of several groups (say which, as in {kinds[0]}={name})"
    names = [other for kind in KINDS for other in names_of(kind)]
    return (
        f"is no part that the arena compares{did_you_mean(name, names)} (choose from `testbed list "
        f"{' '.join(KINDS)}`, or give MODULE:CLASS or FILE.py:CLASS)"
    )


def _of_file(name: str) -> Entrant:
    """The class of a file, whose module is found in the file's folder."""
    path, cls = _path_of(name), name.rpartition(":")[2]
    sys.path.insert(0, str(path.parent))
    entrant = _of_class(name, f"{path.stem}:{cls}")
    return Entrant(name, entrant.kind, entrant.words, str(path.parent), content_hash(path))


def _path_of(name: str) -> Path:
    file = name.rpartition(":")[0]
    path = Path(file).resolve()
    if not path.is_file():
        raise InputError(key=name, problem=f"there is no file {file}", remedy="give FILE.py:CLASS")
    return path


def _of_class(name: str, target: str) -> Entrant:
    cls = locate(target.replace(":", "."), "entrant")
    kind = next((kind for kind, base in KINDS.items() if _is_kind(cls, base)), None)
    if kind is None:
        bases = ", ".join(base.__name__ for base in KINDS.values())
        raise InputError(key=name, problem=f"is none of {bases}", remedy="derive it from one")
    hashes = [content_hash(path) for path in plug_in_files(target.replace(":", ".")).values()]
    return Entrant(name, kind, _words(kind, target), source="".join(hashes)[:64])


def _is_kind(cls: object, base: type) -> bool:
    return isinstance(cls, type) and issubclass(cls, base)


def _words(kind: str, name: str) -> tuple[str, ...]:
    return (f"{KEYS.get(kind, kind)}={name}",)


def shipped() -> list[str]:
    """Every eviction order that ships and serves any workload of a suite, and memory policies."""
    return [*[name for name in names_of(EVICTION) if name not in LEFT_OUT], *POLICIES]


# Belady is a bound, a custom part is a mould, by_session needs sessions.
LEFT_OUT = ("belady", "custom", "by_session")
POLICIES = (
    "contiguous_max",
    "contiguous_pow2",
    "prefix_caching_v1",
    "radix",
    "vllm_offloading",
)
