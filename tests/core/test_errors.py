"""Refusals: their text from fields, and code that decides by class and fields alone."""

import ast
import pickle
import re
from pathlib import Path

import pytest

import testbed
from testbed.core.errors import DoesNotFit, DoesNotStart, InputError
from testbed.core.model_files import did_you_mean_model, model_names
from testbed.core.spelling import UnknownKey, near_names

ROOT = Path(testbed.__file__).parents[1]
REFUSALS = {"InputError", "AnswerIsNo", "DoesNotFit", "DoesNotStart", "NoRate", "NotSustained"}
BY_TEXT = {"PlugInError", "UnsupportedError", "OracleError"}
SEARCHED = re.compile(
    "|".join(["except ", "not start", *REFUSALS, *BY_TEXT])
)  # other sources are not parsed
REMEDY = re.compile(r" \((give|choose|leave|set|say|add|remove|name|install) [^()]*\)?$")
SEARCHES = {"startswith", "endswith", "find", "index", "partition", "rpartition", "removeprefix"}


def test_a_refusal_without_a_key_is_an_error_of_the_program():
    with pytest.raises(TypeError):
        InputError(key=None, problem="is wrong")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"key": "seed"}, "seed: is wrong"),
        ({"key": "seed", "value": "x"}, "seed=x: is wrong"),
        ({"key": "seed", "value": "x", "remedy": "give 0"}, "seed=x: is wrong (give 0)"),
        ({"key": "--seeds", "value": 2}, "--seeds 2: is wrong"),
        ({"key": "--from-vllm: --dtype", "value": "x"}, "--from-vllm: --dtype x: is wrong"),
        ({"key": Path("a.csv"), "remedy": "give 0"}, "a.csv: is wrong (give 0)"),
    ],
)
def test_text_of_a_refusal_has_what_is_given(fields, text):
    assert str(InputError(problem="is wrong", **fields)) == text


@pytest.mark.parametrize("given", [("is wrong",), ("seed", "is wrong")])
def test_text_without_fields_makes_no_refusal(given):
    with pytest.raises(TypeError):
        InputError(*given)


@pytest.mark.parametrize(
    "error",
    [
        DoesNotFit(key="model", value="m", problem="is too large", remedy="more GPUs"),
        UnknownKey("polcy", ["policy"]),
    ],
)
def test_refusal_leaves_a_process_whole(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert vars(again) == vars(error)


def test_refusal_of_a_part_names_the_whole():
    part = DoesNotFit(key="line 3", problem="is wrong", remedy="mend it")
    assert str(part.within("a.csv")) == "a.csv: line 3: is wrong (mend it)"
    assert str(part.with_remedy("or not")) == "line 3: is wrong (mend it; or not)"
    assert isinstance(part.within("a.csv"), DoesNotFit)
    assert part.key == "line 3"


def nodes_of(source: str) -> list[ast.AST]:
    """All nodes of a source, for several searches."""
    return list(ast.walk(ast.parse(source)))


def refused_by_text(nodes: list[ast.AST]) -> list[int]:
    """The lines that build a refusal whose problem contains its own key or remedy."""
    return [
        node.lineno
        for node in nodes
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", None) in REFUSALS
        and any(_has_more(field.value) for field in node.keywords if field.arg == "problem")
    ]


def _has_more(problem: ast.expr) -> bool:
    parts = problem.values if isinstance(problem, ast.JoinedStr) else [problem]
    texts = [part.value for part in parts if isinstance(part, ast.Constant)]
    return any(REMEDY.search(text) for text in texts if isinstance(text, str))


def test_a_remedy_within_a_problem_is_found():
    assert refused_by_text(nodes_of("InputError(key='a', problem='is 1 (give 2)')")) == [1]
    assert refused_by_text(nodes_of("InputError(key='a', problem='is 1', remedy='give 2')")) == []


def refusals_of_none(nodes: list[ast.AST]) -> list[int]:
    """The lines of refusals that are given None, also within their texts, or no text at all."""
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return [
        call.lineno
        for call in calls
        if getattr(call.func, "id", None) in {"InputError", *BY_TEXT}
        if _lacks_text(call) or any(map(_is_given_none, ast.walk(call)))
    ]


def _lacks_text(call: ast.Call) -> bool:
    if ast.unparse(call.func) in BY_TEXT:
        return not call.args
    return bool(call.args) or not {"key", "problem"} <= {keyword.arg for keyword in call.keywords}


def _is_given_none(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    return any(isinstance(value, ast.Constant) and value.value is None for value in given)


@pytest.mark.parametrize(
    "refusal",
    [
        "InputError(key='x', problem=None)",
        "InputError(key='x', problem='y', remedy=None)",
        "InputError(key='x')",
        "InputError(None)",
        "InputError(key='x', problem=f'is {type(None).__name__}')",
        "PlugInError(None)",
        "PlugInError()",
    ],
)
def test_a_refusal_of_none_is_found(refusal):
    assert refusals_of_none(nodes_of(f"raise {refusal}")) == [1]


def searched_texts(nodes: list[ast.AST]) -> list[int]:
    """The lines that search the text of a caught exception."""
    return [
        node.lineno
        for handler in nodes
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
    nodes = nodes_of(f"try:\n    f()\nexcept E as e:\n    print({use})\n")
    assert searched_texts(nodes) == [4]


def starts_by_text(nodes: list[ast.AST]) -> list[int]:
    """The lines of errors that say in their own words that a server does not start."""
    return [
        part.lineno
        for node in nodes
        if isinstance(node, ast.Raise)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and "not start" in str(part.value)
    ]


def test_a_start_that_a_text_refuses_is_found():
    text = "raise InputError(key='a', problem='vLLM does not start')"
    assert starts_by_text(nodes_of(text)) == [1]


def test_the_class_of_a_server_that_does_not_start_says_so():
    refusal = DoesNotStart(key="--dtype", value="x", problem="is wrong", system="SGLang")
    assert str(refusal) == "--dtype x: SGLang does not start: is wrong"
    again = pickle.loads(pickle.dumps(refusal.within("a.csv")))
    assert str(again) == "a.csv: --dtype x: SGLang does not start: is wrong"


def test_sources_have_whole_refusals_and_search_no_message():
    """No problem contains its remedy. Each refusal gives a key and a problem, and leaves out the
    remedy and the value that it has not. That a server does not start is said by a class alone.
    """
    sources = (
        path
        for room in ("testbed", "traces", "experiments", "kernels")
        for path in (ROOT / room).rglob("*.py")
    )
    for path in sources:
        text = path.read_text(encoding="utf-8")
        nodes = nodes_of(text) if SEARCHED.search(text) else []
        for search in (refused_by_text, refusals_of_none, searched_texts, starts_by_text):
            assert search(nodes) == [], f"{search.__name__}: {path}"


GPUS = ["a100-80gb", "a100-80gb-pcie", "h100-80gb", "h100-nvl"]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("A100-80GB", ["a100-80gb"]),
        ("H100", ["h100-80gb", "h100-nvl"]),
        ("A100", ["a100-80gb", "a100-80gb-pcie"]),
        ("A100-80G-PCIe", ["a100-80gb-pcie"]),
        ("gpu", []),
    ],
)
def test_names_are_offered_in_any_case_and_the_equal_one_alone(name, near):
    assert near_names(name, GPUS) == near


def test_models_that_are_offered_say_that_they_take_images():
    question = did_you_mean_model("mistral-small-24b", model_names())
    assert "mistral-small-3.1-24b (with an encoder of images)" in question
    assert "mistral-7b (" not in question
