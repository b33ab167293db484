"""Plug-ins by name: the class that is loaded, the files it is made of, what a wrong name says."""

import pytest
from pydantic.dataclasses import dataclass
from refusals import refuses

from testbed.core.config_model import model
from testbed.core.errors import InputError
from testbed.cost.sections import Choices
from testbed.run.parts import Part, check_kinds_of_parts, locate, plug_in_errors
from testbed.run.plug_in_sources import imported_names, plug_in_files
from testbed.sched.beam_search import SyntheticBeams
from testbed.speculation.acceptance import Acceptance


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with relative imports, beside a module; its folder."""
    folder = tmp_path / "orders_of_mine"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("from .shared import base\n")
    (folder / "shared.py").write_text("import json\nbase = 1\n")
    (folder / "inner" / "__init__.py").write_text("")
    (folder / "inner" / "order.py").write_text(
        "from .. import shared\nfrom . import other\nfrom ..shared import base\nimport helper\n"
        "class Mine:\n    pass\n"
    )
    (folder / "inner" / "other.py").write_text("")
    (folder / "unread.py").write_text("")
    (tmp_path / "helper.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_a_class_is_made_of_what_its_file_imports_and_the_packages_above(package):
    found = plug_in_files("orders_of_mine.inner.order.Mine")
    assert list(found) == [
        "helper",
        "orders_of_mine",
        "orders_of_mine.inner",
        "orders_of_mine.inner.order",
        "orders_of_mine.inner.other",
        "orders_of_mine.shared",
    ]
    assert found["orders_of_mine.inner.order"] == package / "inner" / "order.py"


def test_python_and_this_package_are_no_plug_ins(package):
    for name in ("json.decoder.JSONDecoder", "sys.Nothing", "testbed.memory.paged.Paged", "Alone"):
        assert plug_in_files(name) == {}
    assert plug_in_files("no_such_module.Class") == {}
    (package / "broken.py").write_text("def (:\n")
    assert imported_names(package / "broken.py", "orders_of_mine.broken") == []


def test_an_installed_package_is_all_of_its_files(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages" / "installed_orders"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "data.csv").write_text("")
    (folder / "old.pyc").write_text("")
    (folder.parent / "one_file_order.py").write_text("")
    monkeypatch.syspath_prepend(folder.parent)
    assert list(plug_in_files("installed_orders.Mine")) == [
        "installed_orders/__init__.py",
        "installed_orders/data.csv",
    ]
    assert list(plug_in_files("one_file_order.Mine")) == ["one_file_order"]


@pytest.mark.parametrize(
    ("name", "key", "remedy"),
    [
        ("json.decoder", "order._target_", "MODULE.CLASS"),
        ("mine.py", "order", "MODULE:CLASS"),
        ("mine.py.Order", "order", "mine:Order"),
        ("no_such_module.Order", "order", "no_such_module.py"),
        ("json.no_such_class", "order", ""),
    ],
)
def test_a_name_that_is_no_class_says_how_to_name_one(name, key, remedy):
    with pytest.raises(InputError) as caught:
        locate(name, "order")
    assert (caught.value.key, caught.value.value) == (key, name)
    assert remedy in caught.value.remedy
    assert bool(remedy) == bool(caught.value.remedy)


@pytest.mark.parametrize(
    ("error", "key", "problem"),
    [
        (SystemExit(3), "Mine", "sys.exit(3)"),
        (FileNotFoundError(2, "No such file", "x.csv"), "order", "x.csv: No such file"),
        (OSError("odd"), "order", "Mine: odd"),
        (ValueError("too few"), "order", "too few"),
        (TypeError("no argument"), "order", "Mine: no argument"),
        (KeyError("left"), "order", "Mine: KeyError: 'left'"),
        (InputError(key="size", problem="is odd"), "order: size", "is odd"),
        (InputError(key="order.size", problem="is odd"), "order.size", "is odd"),
        (InputError(key="order", problem="is odd"), "order", "is odd"),
    ],
)
def test_errors_of_a_plug_in_name_the_key(error, key, problem):
    with pytest.raises(InputError) as caught, plug_in_errors("order", "Mine"):
        raise error
    assert caught.value.key == key
    assert problem in caught.value.problem


def test_a_lack_of_memory_is_no_error_of_a_plug_in():
    with pytest.raises(MemoryError), plug_in_errors("order", "Mine"):
        raise MemoryError


@pytest.mark.parametrize(
    ("values", "shown"), [(None, "None"), (5, "5"), ("mixed", "'mixed'"), ({"size": 1}, None)]
)
def test_values_that_name_no_class_are_no_part(values, shown):
    with pytest.raises(InputError, match="names no class") as caught:
        Part.from_values(values, "scheduler")
    assert (caught.value.key, caught.value.value) == ("scheduler", shown)
    assert "testbed list" in caught.value.remedy


def test_objects_and_classes_are_parts():
    beams = SyntheticBeams()
    assert Part.from_values(beams, "beams").target is beams
    assert Part.from_values(SyntheticBeams, "beams").target is SyntheticBeams
    part = Part.from_values(beams, "beams")
    assert Part.from_values(part, "beams") is part


def test_a_parameter_of_another_kind_is_named_with_its_place():
    def drafter(acceptance: Acceptance | None = None, name: str = "") -> None:
        """Takes one of this project's objects."""

    given = {"acceptance": "constant", "name": "constant"}
    with pytest.raises(InputError) as caught:
        check_kinds_of_parts(drafter, given, given, "speculation")
    assert (caught.value.key, caught.value.value) == ("speculation.acceptance", "constant")
    assert "Acceptance" in caught.value.problem
    check_kinds_of_parts(drafter, {"name": "constant"}, given, "speculation")


@pytest.mark.parametrize("decorator", [dataclass(config={"strict": True}), model])
def test_a_class_that_checks_itself_is_called_with_what_comes_first(decorator):
    """A model of this project is read from a mapping; a policy like this one gets its pool."""

    @decorator
    class Mine:
        pool: int
        size: int = 1

    made = Part(Mine, {"size": 3}).make("policy", 7)
    assert (made.pool, made.size) == (7, 3)
    assert Part(Mine, {"pool": 5, "size": 2}).make("trace").size == 2


def test_a_model_is_refused_by_the_place_of_its_value():
    refuses("cost.choices.swap='foo': ", Part(Choices, {"swap": "foo"}).make, "cost.choices")
    near = "cost.choices.swp: .*did you mean cost.choices.swap"
    refuses(near, Part(Choices, {"swp": 1}).make, "cost.choices")
