"""The API page: each parameter and field on it has a meaning, and each kind of plug-in is there."""

import inspect
import re
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path

import pytest

from testbed.experiments.runs.choice_names import CLASS_OF_FILE, CONF
from testbed.run.parts import locate

PAGE = Path(__file__).parents[2] / "experiments" / "site" / "pages" / "api.md"
ENTRY = re.compile(r"(?m)^::: (\S+)(?:\n    options: \{members: \[([^]]*)\]\})?")


def documented():
    """The functions and classes of the page."""
    for name, members in ENTRY.findall(PAGE.read_text(encoding="utf-8")):
        try:
            module = import_module(name)
        except ModuleNotFoundError:
            yield locate(name, "page")
            continue
        names = re.findall(r"\w+", members) or [
            name for name, one in vars(module).items() if inspect.getmodule(one) is module
        ]
        yield from (getattr(module, name) for name in names)


OBJECTS = list(documented())
CLASSES = tuple(one for one in OBJECTS if inspect.isclass(one))


def functions_of(one):
    """A function itself, or the public methods of a class, its constructor among them."""
    if not inspect.isclass(one):
        return [one]
    methods = [value for value in vars(one).values() if inspect.isfunction(value)]
    constructor = "" if fields_of(one) else "__init__"
    return [one for one in methods if one.__name__ == constructor or one.__name__[0] != "_"]


def fields_of(one):
    """The fields of a named tuple or data class."""
    if is_dataclass(one):
        return tuple(of.name for of in fields(one))
    return tuple(getattr(one, "_fields", ()))


def meanings(documented, heading):
    """The names below a heading of a docstring."""
    text = (inspect.getdoc(documented) or "").partition(f"{heading}:\n")[2]
    return {name.lstrip("*") for name in re.findall(r"(?m)^    (\**\w+): \S", text)}


@pytest.mark.parametrize("one", OBJECTS, ids=lambda one: one.__name__)
def test_every_parameter_has_a_meaning(one):
    for function in functions_of(one):
        names = set(inspect.signature(function).parameters) - {"self"}
        assert meanings(function, "Args") == names, function.__qualname__


@pytest.mark.parametrize("one", list(filter(fields_of, CLASSES)), ids=lambda one: one.__name__)
def test_every_field_has_a_meaning(one):
    assert set(fields_of(one)) <= meanings(one, "Attributes")


def test_every_kind_of_plug_in_is_on_the_page():
    """Values that a run is made of, such as a GPU's, and the paper's studies are no plug-ins."""
    kinds = dict[str, type]()
    for path in CONF.glob("*/*.yaml"):
        target = next(filter(None, map(CLASS_OF_FILE.match, path.read_text().splitlines())), None)
        if target is None or target["name"].startswith("testbed.experiments."):
            continue
        kind = locate(target["name"], path.parent.name)
        if inspect.isclass(kind) and not fields_of(kind):
            kinds[path.parent.name] = kind
    assert {"policy", "eviction", "trace", "arrivals", "router", "cost"} <= kinds.keys()
    assert {group: kind for group, kind in kinds.items() if not issubclass(kind, CLASSES)} == {}
