"""Refusals: their text from fields, and code that decides by class and fields alone."""

import ast
from pathlib import Path

import pytest

import testbed
from testbed.core.errors import InputError

ROOT = Path(testbed.__file__).parents[1]
SEARCHES = {"startswith", "endswith", "find", "index", "partition", "rpartition", "removeprefix"}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "is wrong"),
        ({"key": "seed"}, "seed: is wrong"),
        ({"key": "seed", "value": "x"}, "seed=x: is wrong"),
        ({"key": "seed", "value": "x", "remedy": "give 0"}, "seed=x: is wrong (give 0)"),
        ({"remedy": "give 0"}, "is wrong (give 0)"),
    ],
)
def test_text_of_a_refusal_has_what_is_given(fields, text):
    assert str(InputError("is wrong", **fields)) == text


def searched_texts(source: str) -> list[int]:
    """The lines that search the text of a caught exception."""
    return [
        node.lineno
        for handler in ast.walk(ast.parse(source))
        if isinstance(handler, ast.ExceptHandler) and handler.name
        for node in ast.walk(handler)
        if _searches(node, handler.name)
    ]


def _searches(node: ast.AST, error: str) -> bool:
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        return _is_text(node.comparators[0], error)
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return is_method and node.func.attr in SEARCHES and _is_text(node.func.value, error)


def _is_text(node: ast.expr, error: str) -> bool:
    return ast.unparse(node) in (f"str({error})", f"{error}.args[0]", f"{error}.problem")


@pytest.mark.parametrize(
    "use", ["'x' in str(e)", "str(e).startswith('x')", "e.args[0].partition(':')"]
)
def test_a_search_of_a_message_is_found(use):
    assert searched_texts(f"try:\n    f()\nexcept E as e:\n    print({use})\n") == [4]


def test_code_searches_no_message():
    found = {
        str(path): lines
        for room in ("testbed", "traces", "experiments", "kernels")
        for path in (ROOT / room).rglob("*.py")
        if (lines := searched_texts(path.read_text(encoding="utf-8")))
    }
    assert found == {}
