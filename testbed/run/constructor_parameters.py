"""The parameters of a class or function, by its signature and annotations or by the source of a
compiled class, and the check of their values.
"""

import ast
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from types import FunctionType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from testbed.core.config_model import CONFIG

CHECKED = (int, float, bool, str, Path, type(None))  # types of parameters whose values are checked
CONTAINERS = (Union, UnionType, Annotated, list)  # of checked types


@cache
def validator_of(target: Any) -> TypeAdapter[Any]:
    """Checks the parameters of a class or function against their annotations."""
    declared = parameters_of(target) or {}
    hints = {name: hint if is_checked(hint) else Any for name, hint in declared.items()}
    typed_dict: Any = TypedDict  # mypy wants its fields as a literal
    parameters = typed_dict("parameters", hints, total=False)
    parameters.__pydantic_config__ = CONFIG
    return TypeAdapter(parameters)


def is_checked(hint: Any) -> bool:
    """Whether values of this annotation are checked: plain values, and tables and lists of them."""
    if hint in CHECKED or get_origin(hint) is Literal:
        return True
    origin, members = get_origin(hint), get_args(hint)
    if origin is Annotated:
        members = members[:1]
    is_container = origin in CONTAINERS or (
        isinstance(origin, type) and issubclass(origin, (Mapping, Sequence)) and origin is not tuple
    )
    return is_container and all(map(is_checked, members))


@cache
def parameters_of(target: Any) -> dict[str, Any] | None:
    """The annotation of every parameter, None where any name is accepted; a class may pass keywords
    to its base class.
    """
    hints: dict[str, Any] = {}
    for owner in target.__mro__[:-1] if inspect.isclass(target) else (target,):
        if owner is not target and "__init__" not in vars(owner):
            continue
        own = compiled_parameters(owner) if is_compiled(owner) else plain_parameters(owner)
        if own is None:
            return None
        hints = own.hints | hints
        if not own.has_others:
            return hints
    return None


def constructor_parameters(cls: type) -> list[str]:
    """The names of the parameters of the constructor that a class has, its own or an inherited
    one.
    """
    owner = next((owner for owner in cls.__mro__[:-1] if "__init__" in vars(owner)), cls)
    own = compiled_parameters(owner) if is_compiled(owner) else plain_parameters(owner)
    return list(own.hints) if own is not None else []


class Parameters(NamedTuple):
    """The parameters of a constructor or function by name; has_others: it takes any others too."""

    hints: dict[str, Any]
    has_others: bool


def plain_parameters(owner: Any) -> Parameters | None:
    """From the signature; None for a class written in C, which has none."""
    try:
        parameters = signature_of(owner).parameters.values()
    except (TypeError, ValueError):
        return None
    hints = annotations_of(owner)
    named = [
        parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD
    ]
    return Parameters(
        {name: hints.get(name, Any) for name in named}, has_others=len(named) < len(parameters)
    )


def signature_of(owner: Any) -> inspect.Signature:
    """The signature of a call. That of a class is read from its constructor: a class that extends a
    compiled one has a metaclass, whose __call__ takes anything.
    """
    constructor = vars(owner).get("__init__") if inspect.isclass(owner) else None
    if not isinstance(constructor, FunctionType):
        return inspect.signature(owner)
    signature = inspect.signature(constructor)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def annotations_of(target: Any) -> dict[str, Any]:
    """The annotations of a constructor or function, with their marks; none where they cannot be
    read.
    """
    try:
        is_plain_class = inspect.isclass(target) and not is_dataclass(target)
        return get_type_hints(target.__init__ if is_plain_class else target, include_extras=True)
    except Exception:  # they name imports for type checkers only
        return {}


def is_compiled(owner: Any) -> bool:
    """Whether this project's compiled wheel has the class, whose annotations mypyc has dropped."""
    file = getattr(sys.modules.get(owner.__module__), "__file__", None) or ""
    return owner.__module__.startswith("testbed.") and not file.endswith(".py")


def compiled_parameters(owner: Any) -> Parameters | None:
    """From the source file, which lies beside the compiled module."""
    module = sys.modules[owner.__module__]
    path = Path(str(module.__file__))
    text = path.with_name(f"{path.name.partition('.')[0]}.py").read_text(encoding="utf-8")
    nodes = [node for node in ast.parse(text).body if getattr(node, "name", "") == owner.__name__]
    fields = [statement for node in nodes for statement in getattr(node, "body", ())]
    constructors = [
        statement for statement in fields if getattr(statement, "name", "") == "__init__"
    ]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    for function in (*constructors, *functions):
        arguments = function.args
        listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        texts = {argument.arg: argument.annotation for argument in listed if argument.arg != "self"}
        return Parameters(_evaluated(texts, vars(module)), has_others=arguments.kwarg is not None)
    if not is_dataclass(owner):
        return Parameters({}, has_others=True)  # those of its base class
    annotated = [statement for statement in fields if isinstance(statement, ast.AnnAssign)]
    texts = {ast.unparse(statement.target): statement.annotation for statement in annotated}
    return Parameters(_evaluated(texts, vars(module)), has_others=False)


def _evaluated(nodes: Mapping[str, ast.expr | None], names: dict[str, Any]) -> dict[str, Any]:
    """Annotations as objects; Any for one that is not given or names imports of type checkers."""
    hints = dict[str, Any]()
    for name, node in nodes.items():
        holder = SimpleNamespace(__annotations__={name: ast.unparse(node)} if node else {})
        try:
            hints[name] = get_type_hints(holder, names, include_extras=True).get(name, Any)
        except NameError:
            hints[name] = Any
    return hints
