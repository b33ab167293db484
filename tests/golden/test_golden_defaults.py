"""Golden rows of every default of the simulator's classes and functions. Another default gives
other numbers for the same command, so it changes only by `pytest --update-golden`.
"""

import csv
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest
from pydantic.dataclasses import is_pydantic_dataclass

ROOMS = ("memory", "sched", "engine", "cost", "fleet", "speculation", "run")
PLAIN = (bool, int, float, str, tuple, type(None))


def owners(room):
    """The functions and classes of a room, and the methods of these, by name."""
    root = importlib.import_module(f"testbed.{room}")
    for info in pkgutil.walk_packages(root.__path__, f"{root.__name__}."):
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) == module.__name__:
                yield f"{info.name}.{name}", value
                for member, own in [*vars(value).items()] if inspect.isclass(value) else ():
                    yield f"{info.name}.{name}.{member}", getattr(own, "__func__", own)


def defaults_of(owner):
    """The defaults of the parameters of a function or a model, or the plain values of a class, by
    name.
    """
    if inspect.isfunction(owner) or is_pydantic_dataclass(owner):
        parameters = inspect.signature(owner).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}
    values = vars(owner) if inspect.isclass(owner) else {}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, PLAIN) and not name.startswith("_")
    }


def shown_of(default):
    """A plain default, or the class of another one."""
    return default if isinstance(default, PLAIN) else type(default).__name__


@pytest.mark.parametrize("room", ROOMS)
def test_defaults_equal_the_golden_rows(room, golden):
    for name, owner in owners(room):
        if defaults := defaults_of(owner):
            shown = {key: shown_of(default) for key, default in defaults.items()}
            golden("defaults.csv", name, {"defaults": shown})


def test_every_golden_row_is_of_something():
    names = {name for room in ROOMS for name, owner in owners(room) if defaults_of(owner)}
    with Path(__file__).with_name("defaults.csv").open(newline="") as rows:
        assert {row["case"] for row in csv.DictReader(rows)} == names
