"""Which classes a file may name: those of this project that are parts of a run.

Whoever writes a file chooses the names in it, and a name is enough to import a module and to call
what it contains. So each reader of a file with parts calls `check_classes` before anything is made
of them. Classes that the user names on the command line or in Python do not come from a file, and
are not checked.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from testbed.core.errors import InputError
from testbed.core.spelling import dotted

FLAG = "--trust-plug-ins"
CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # MODULE:CLASS, as the command line names one
TARGET = "_target_"
# They define all kinds of parts
PACKAGES = ("core", "cost", "engine", "fleet", "memory", "sched", "speculation", "traces")
FUNCTIONS = ("testbed.cost.auto.auto_cost", "testbed.cost.derive.derived_cost")


def check_classes(values: Any, source: object, *, named_by_user: Collection[str] = ()) -> None:
    """Raise InputError for a class in these plain values, at any depth, that they may not name.

    source: the file that the values are from, for the message. named_by_user: dotted names of
    classes that the user chose.
    """
    for key, name in class_names(values):
        if name not in named_by_user and not is_own_part(name):
            raise InputError(
                f"{source}: {key}={name}: is none of this project's parts of a run, and a file may "
                f"name no others ({FLAG} loads it, which runs its code)"
            )


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


def is_own_part(name: str) -> bool:
    """Whether a dotted name is that of a class of this project, of a kind of which runs have parts.

    Only modules of PACKAGES are imported, and their members are taken by name: a module's own
    imports, such as `testbed.core.errors.sys.exit`, are neither classes of a kind nor of this
    project.
    """
    module_name, _, member = name.rpartition(".")
    top, _, below = module_name.partition(".")
    if top != "testbed" or below.partition(".")[0] not in PACKAGES:
        return False
    try:
        target = getattr(import_module(module_name), member, None)
    except (ImportError, ValueError):
        return False
    if name in FUNCTIONS:
        return True
    if not isinstance(target, type) or not target.__module__.startswith("testbed."):
        return False
    return issubclass(target, kinds())


@cache
def kinds() -> tuple[type, ...]:
    """The kinds of parts, those of parts of parts, and the groups of values that parts take."""
    from testbed.core.specs import LAYERS, GpuSpec, ModelSpec, ServerSpec, TierSpec
    from testbed.cost.analytic import Efficiencies
    from testbed.cost.sections import Choices
    from testbed.memory.prefix_cache.eviction.order import EvictionOrder
    from testbed.memory.tiers.load_rules import LoadRule
    from testbed.memory.tiers.store_rules import StoreRule
    from testbed.run.build_checks import (
        KINDS,  # here, because these need NumPy, and --help should not
    )
    from testbed.speculation.acceptance import Acceptance

    parts_of_parts = (EvictionOrder, StoreRule, LoadRule, Acceptance)
    specs = (ModelSpec, ServerSpec, GpuSpec, TierSpec, *LAYERS.values(), Efficiencies, Choices)
    return (*KINDS.values(), *parts_of_parts, *specs)
