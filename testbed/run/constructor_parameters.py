"""The parameters of a class or function by its signature and annotations, their defaults, and the
check of their values.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, cached_property
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from testbed.core.config_model import CONFIG
from testbed.core.oracle_protocols import LENGTHS

CHECKED = (int, float, bool, str, Path, type(None))  # types of parameters whose values are checked
PLAIN_FORMS: Mapping[type, Callable[[Any], Any]] = {Mapping: dict, tuple: list, Path: str}
MUST_BE_GIVEN = "???"  # OmegaConf's mark of a value that is missing
# Plain parameters that no configuration has: the builder gives them (`testbed.run.served_parts`)
BY_THE_BUILDER = (LENGTHS, "max_len")
CONTAINERS = (Union, UnionType, Annotated, list)  # of checked types


@dataclass(frozen=True)
class Parameters:
    """The parameters of a class or function: their annotations by name, and the defaults of those
    that have one. checked: whose values are plain. has_others: it takes any others too.
    """

    hints: dict[str, Any]
    defaults: dict[str, Any]
    checked: frozenset[str]
    has_others: bool

    def has(self, name: str) -> bool:
        """True if it takes a parameter of this name."""
        return self.has_others or name in self.hints

    @cached_property
    def validator(self) -> TypeAdapter[Any]:
        """Checks values by name against their annotations; others are refused."""
        hints = {name: hint if name in self.checked else Any for name, hint in self.hints.items()}
        typed_dict: Any = TypedDict  # mypy wants its fields as a literal
        parameters = typed_dict("parameters", hints, total=False)
        parameters.__pydantic_config__ = CONFIG
        return TypeAdapter(parameters)

    @cached_property
    def plain_defaults(self) -> Mapping[str, Any]:
        """The parameters that take plain values, with their defaults, as YAML has them; "???" for
        one that must be given. Objects, and what the builder gives, are left out.
        """
        values: dict[str, Any] = {}
        for name in self.hints:
            value = self.defaults.get(name, MUST_BE_GIVEN)
            for kind, plain in PLAIN_FORMS.items():
                value = plain(value) if isinstance(value, kind) else value
            # without an annotation, a default alone says that a parameter is plain
            is_plain = isinstance(value, int | float | str) and value != MUST_BE_GIVEN
            if name not in BY_THE_BUILDER and (name in self.checked or is_plain):
                values[name] = value
        return values


def is_checked(hint: Any) -> bool:
    """True if values of this annotation are checked: plain values, and tables and lists of them."""
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
def parameters_of(target: Any) -> Parameters:
    """The parameters of a function, or of a class and of the base classes that get its other
    keywords; a constructor without a signature, such as one written in C, takes any.
    """
    hints: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    has_others = True
    for owner in target.__mro__[:-1] if inspect.isclass(target) else (target,):
        if owner is not target and "__init__" not in vars(owner):
            continue
        try:
            parameters = inspect.signature(owner).parameters.values()
        except (TypeError, ValueError):
            break
        own = annotations_of(owner)
        named = [entry for entry in parameters if entry.kind is not entry.VAR_KEYWORD]
        hints = {entry.name: own.get(entry.name, Any) for entry in named} | hints
        given = {entry.name: entry.default for entry in named if entry.default is not entry.empty}
        made = {
            field.name: field.default_factory()
            for field in (fields(owner) if is_dataclass(owner) else ())
            if field.default_factory is not MISSING
        }
        defaults = given | made | defaults
        has_others = len(named) < len(parameters)
        if not has_others:
            break
    checked = frozenset(name for name, hint in hints.items() if is_checked(hint))
    return Parameters(hints, defaults, checked, has_others)


def annotations_of(target: Any) -> dict[str, Any]:
    """The annotations of a constructor or function, with their marks; none if they cannot be
    read.
    """
    try:
        is_plain_class = inspect.isclass(target) and not is_dataclass(target)
        return get_type_hints(target.__init__ if is_plain_class else target, include_extras=True)
    except Exception:  # they name imports for type checkers only
        return {}
