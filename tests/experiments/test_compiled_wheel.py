"""What the compiler is given: classes that plug-ins may extend are open, every line keeps its
number, and nothing is compiled unless it is asked for.
"""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

from testbed.experiments import compiled_wheel
from testbed.experiments.compiled_wheel import CompiledWheel, compiled_sources, opened

OPEN = "@mypyc_attr(allow_interpreted_subclasses=True)"
MODULE = '''"""A module.

Of two lines."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


class Part(ABC):
    """A part."""

    @abstractmethod
    def grow(self, by: int) -> None:
        """Larger."""


class Batch:
    def only(self) -> int:
        return 1


@dataclass(frozen=True)
class Value:
    number: int


class MemoryPolicy(ABC):
    @abstractmethod
    def table(self, seq: int) -> list[int]:
        """Its blocks."""


class Paged(MemoryPolicy):
    def table(self, seq: int) -> list[int]:
        return [seq]
'''


@pytest.fixture
def lines():
    return opened(MODULE).splitlines()


def decorated(lines):
    """The classes that stand behind the line that opens them."""
    return [lines[i + 1].split("(")[0].split()[1] for i, line in enumerate(lines) if line == OPEN]


def test_classes_that_plug_ins_may_extend_are_open(lines):
    assert decorated(lines) == ["Part", "MemoryPolicy", "Paged"]  # not Batch, nor the value


def test_every_line_keeps_its_number(lines):
    original = MODULE.splitlines()
    for i, line in enumerate(original):
        if line.strip() and "import" not in line and "def table" not in line:
            assert lines[i] == line
    ast.parse("\n".join(lines))


def test_answers_of_policies_are_checked_by_us_and_not_by_the_compiler(lines):
    table = [line for line in lines if "def table" in line]
    assert table[0].endswith("-> typing.Any:")


def test_abstract_methods_are_listed_behind_the_module(lines):
    assert lines[len(MODULE.splitlines()) :] == [
        "settle(Part, 'grow')",
        "settle(MemoryPolicy, 'table')",
        "settle(Paged)",
    ]


def test_a_module_without_open_classes_is_left_as_it_is():
    text = '"""About."""\n\nA = 1\n\n\nclass Batch:\n    pass\n'
    assert opened(text) == text


def test_modules_of_the_simulator_are_compiled_but_for_those_that_cannot_be(tmp_path):
    for name, text in {
        "core/a.py": "",
        "core/__init__.py": "",
        "core/errors.py": "",
        "memory/deep/b.py": "",
        "memory/c.py": "print(__file__)",
        "engine/clients.py": "",
        "other/d.py": "",
        "sched/e.txt": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    sources = [str(path.relative_to(tmp_path)) for path in compiled_sources(tmp_path)]
    assert sources == ["core/a.py", "memory/deep/b.py"]


@pytest.fixture
def hook():
    """The build hook, whose abort is an exit."""

    def abort(text):
        raise SystemExit(text)

    return CompiledWheel("project", {}, None, None, "", "wheel", SimpleNamespace(abort=abort))


@pytest.mark.parametrize("value", [None, "", "0"])
def test_nothing_is_compiled_unless_it_is_asked_for(hook, monkeypatch, value):
    monkeypatch.delenv("TESTBED_COMPILE", raising=False)
    if value is not None:
        monkeypatch.setenv("TESTBED_COMPILE", value)
    data = {"force_include": {"LICENSE": "LICENSE"}}
    hook.initialize("standard", data)
    assert (hook.requested(), hook.dependencies()) == (False, [])
    assert data == {"force_include": {"LICENSE": "LICENSE"}}


def test_extension_modules_are_added_and_the_folder_of_the_compiler_removed(hook, monkeypatch):
    monkeypatch.setenv("TESTBED_COMPILE", "1")
    monkeypatch.setattr(
        compiled_wheel,
        "compiled",
        lambda package, work: iter([("testbed/core/a.so", work / "out" / "a.so")]),
    )
    data = {"force_include": {"LICENSE": "LICENSE"}}
    hook.initialize("standard", data)
    folder = hook.work.name
    assert any(package.startswith("mypy") for package in hook.dependencies())
    assert data == {
        "force_include": {"LICENSE": "LICENSE", f"{folder}/out/a.so": "testbed/core/a.so"},
        "pure_python": False,
        "infer_tag": True,
    }
    hook.finalize("standard", data, "x")
    assert not Path(folder).exists()


def test_an_editable_install_that_is_to_be_compiled_is_refused(hook, monkeypatch):
    monkeypatch.setenv("TESTBED_COMPILE", "1")
    with pytest.raises(SystemExit, match="without -e"):
        hook.initialize("editable", {})
