"""The exchangeable parts of a run: a class (or its dotted name) with parameters, or an instance."""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass
from functools import cache, partial
from pathlib import Path
from pkgutil import resolve_name
from types import FunctionType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import core_schema
from typing_extensions import TypedDict

from testbed.core.config_model import CONFIG, one_line
from testbed.core.errors import InputError
from testbed.core.spelling import did_you_mean, dotted

CHECKED = (int, float, bool, str, Path, type(None))  # types of parameters whose values are checked
CONTAINERS = (Union, UnionType, Annotated, list)  # of checked types


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a run: `target` is a dotted name, a class or function, or an instance.

    A class or function is called with its context (the pool, for a policy) and `parameters` by
    name; parameters may be parts themselves.
    """

    target: Any
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """As a field of a model: its mapping stands for it."""
        return core_schema.with_info_plain_validator_function(
            lambda values, info: cls.from_values(values, str(info.field_name))
        )

    @classmethod
    def from_values(cls, values: Any, key: str) -> "Part":
        """From the mapping that describes it, or from a class or an object."""
        if isinstance(values, Part):
            return values
        if not isinstance(values, Mapping):
            if values is None or isinstance(values, str | int | float | list):
                raise InputError(
                    f"{key}={values!r}: names no class (`testbed list {key}` shows the options)"
                )
            return cls(values)
        if not isinstance(values.get("_target_"), str):
            raise InputError(
                f"{key}: names no class (choose one by {key}=...; `testbed list` shows the options)"
            )
        parameters = {str(name): value for name, value in values.items() if name != "_target_"}
        for name, value in parameters.items():
            if isinstance(value, Mapping) and "_target_" in value:
                parameters[name] = Part.from_values(value, dotted(key, name))
        return cls(values["_target_"], parameters)

    @property
    def values(self) -> dict[str, Any]:
        """The mapping that describes the part, as in a run folder's config.yaml."""
        plain = {
            key: value.values if isinstance(value, Part) else value
            for key, value in self.parameters.items()
        }
        return {"_target_": self.name, **plain}

    def nested(self) -> "Iterator[Part]":
        """The part, its parameters that are parts, theirs, and so on."""
        yield self
        for value in self.parameters.values():
            if isinstance(value, Part):
                yield from value.nested()

    def updated(self, **parameters: Any) -> "Part":
        return Part(self.target, {**self.parameters, **parameters})

    @property
    def name(self) -> str:
        """The dotted name of the class, of the function, or of the object's class."""
        if isinstance(self.target, str):
            return self.target
        named = self.target
        while isinstance(named, partial):
            named = named.func
        named = named if hasattr(named, "__qualname__") else type(named)
        return f"{named.__module__}.{named.__qualname__}"

    @property
    def is_named(self) -> bool:
        """Whether the target is a dotted name from a config, and not a class or instance that the
        caller passed.
        """
        return isinstance(self.target, str)

    @property
    def is_instance(self) -> bool:
        """Whether the target is an instance, and not a class or function that builds one."""
        makes_one = (
            inspect.isclass(self.target)
            or inspect.isroutine(self.target)
            or isinstance(self.target, partial)
        )
        return not self.is_named and not makes_one

    def make(self, key: str, *first: Any) -> Any:
        """Build the instance; `key` is the part's name in messages. Every failure is an InputError
        in one line.
        """
        if self.is_instance:
            return self.target
        target = locate(self.target, key) if isinstance(self.target, str) else self.target
        self._check(target, key)
        instances = {
            name: value.make(dotted(key, name)) if isinstance(value, Part) else value
            for name, value in self.parameters.items()
        }
        with plug_in_errors(key, self.name):
            built = target(*first, **instances)
        if built is None:
            raise InputError(
                f"{self.name}: returns None where {key} needs an object (name a class)"
            )
        return built

    def _check(self, target: Any, key: str) -> None:
        """Raise InputError for a parameter that is unknown or against its annotation."""
        declared = parameters_of(target)
        unknown = next((name for name in self.parameters if name not in (declared or [name])), None)
        if declared is None:
            return
        if unknown is not None:
            meant = did_you_mean(unknown, declared)
            place = dotted(key, unknown)
            raise InputError(f"{self.name}: takes no {unknown}{meant or ';'} remove by ~{place}")
        values = {
            name: value for name, value in self.parameters.items() if not isinstance(value, Part)
        }
        try:
            validator_of(target).validate_python(values)
        except ValidationError as error:
            raise InputError(one_line(error, declared, key)) from None


def locate(name: str, key: str) -> Callable[..., Any]:
    """The class or function of a dotted name."""
    with plug_in_errors(key, name):
        target = resolve_name(name)
    if not callable(target):
        raise InputError(f"{key}._target_={name}: is no class or function (give MODULE.CLASS)")
    return target  # type: ignore[no-any-return]


@contextmanager
def plug_in_errors(key: str, name: str) -> Iterator[None]:
    """Turn the errors of a plug-in that is loaded or built into InputErrors that name the key, or
    the class where that is clearer.
    """
    try:
        yield
    except InputError as error:
        raise InputError(_with_key(str(error), key)) from error
    except SystemExit as error:
        raise InputError(
            f"{name}: calls sys.exit({error.code!r}) when loaded or built (raise an error instead)"
        ) from error
    except (ImportError, AttributeError) as error:
        raise InputError(f"{key}={name}: cannot be loaded: {error}") from error
    except OSError as error:
        message = f"{error.filename or name}: {error.strerror or error}"
        raise InputError(_with_key(message, key)) from error
    except ValueError as error:
        raise InputError(_with_key(str(error), key)) from error
    except Exception as error:
        message = str(error) if isinstance(error, TypeError) else f"{type(error).__name__}: {error}"
        raise InputError(_with_key(f"{name}: {message}", key)) from error


def _with_key(message: str, key: str) -> str:
    return message if message.startswith(key) else f"{key}: {message}"


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
