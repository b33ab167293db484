"""Frozen dataclasses of configured values, checked by pydantic with errors of one line."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache, partial, wraps
from types import UnionType
from typing import (
    Annotated,
    Any,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Unit
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import core_schema
from typing_extensions import is_typeddict

from testbed.core.errors import InputError
from testbed.core.spelling import UnknownKey, dotted

T = TypeVar("T")
# No text stands for a number, no number for true; numbers are finite; every key is known.
CONFIG = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
UNKNOWN = "unexpected_keyword_argument"
PROBLEMS = {  # by the type of a pydantic error; its context and the field's unit are filled in
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "finite_number": "must be a finite number",
    "tuple_type": "must be a list of values",
    "list_type": "must be a list of values",
    "dict_type": "must be a table of values by name (give '{key}={{NAME: VALUE}}')",
    "greater_than": "must be above {gt:,.12g}{unit}",
    "greater_than_equal": "must be at least {ge:,.12g}{unit}",
    "less_than_equal": "exceeds the maximum of {le:,.12g}{unit}",
    "literal_error": "must be {expected}",
    "too_long": "must have {max_length} values",
    "too_short": "must have {min_length} values",
}


@dataclass_transform(frozen_default=True)
def model(cls: type[T]) -> type[T]:
    """A frozen dataclass that raises InputError for a value against its field's annotation.

    A mapping of its fields stands for it if a field of another model, or `read`, wants one.
    """
    cls.__get_pydantic_core_schema__ = classmethod(_schema)  # type: ignore[attr-defined]
    checked_class: Any = dataclass(frozen=True, slots=True, config=CONFIG)(cls)
    checked = checked_class.__init__

    @wraps(checked)
    def __init__(self: Any, *positional: Any, **named: Any) -> None:
        try:
            checked(self, *positional, **named)
        except ValidationError as error:
            raise refusal_of(error, checked_class) from None

    checked_class.__init__ = __init__
    return checked_class  # type: ignore[no-any-return]


def is_model(target: Any) -> bool:
    """True if `model` made this class: its constructor checks every value by its annotation."""
    schema = getattr(target, "__dict__", {}).get("__get_pydantic_core_schema__")
    return getattr(schema, "__func__", None) is _schema


def _schema(cls: type, source: type, handler: Any) -> Any:
    """The schema of a model, which takes a mapping of its fields too."""
    schema = handler(source)
    handler.resolve_ref_schema(schema)["strict"] = False
    named = f"{source.__module__}.{source.__qualname__}"
    return core_schema.no_info_before_validator_function(
        partial(without_target, named=named), schema
    )


def without_target(values: Any, named: str) -> Any:
    """The values without a `_target_` of this name; another name raises ValueError."""
    if not isinstance(values, Mapping) or "_target_" not in values:
        return values
    if values["_target_"] != named:
        raise ValueError(
            f"_target_={values['_target_']}: only {named} is allowed here (change its values)"
        )
    return {name: value for name, value in values.items() if name != "_target_"}


def read(cls: type[T], values: Any, key: str = "") -> T:
    """The model `cls` from a mapping of its fields, or the model as it is.

    `key` is the mapping's own dotted name, for messages. Raises InputError for a key that is
    unknown or missing, and for a value against its field's annotation.
    """
    try:
        return TypeAdapter(cls).validate_python(values)
    except ValidationError as error:
        raise refusal_of(error, cls, key) from None


def refusal_of(error: ValidationError, cls: Any, key: str = "") -> InputError:
    """The refusal of the first error; unknown keys come before others."""
    errors = error.errors(include_url=False)
    first = next((detail for detail in errors if detail["type"] == UNKNOWN), errors[0])
    kind, value, above = first["type"], first["input"], key
    hint: Any = cls
    for part in first["loc"]:
        if isinstance(part, int) and is_dataclass(plain_hint(hint)):
            part = names_of(hint)[part]  # of a positional argument
        inner = hint_of(hint, part)
        if inner is None and kind != UNKNOWN:
            break  # the member of a union, which is no part of the key
        above, key, holder, hint = key, dotted(key, part), hint, inner
    if kind == UNKNOWN:
        return UnknownKey(key, [dotted(above, name) for name in names_of(holder)])
    if kind == "value_error":
        own = first["ctx"]["error"]
        return own if isinstance(own, InputError) else InputError(key=key, problem=own)
    if kind == "missing" and isinstance(part, int):  # of a tuple, whose values are `value`
        problem = f"must have {len(get_args(plain_hint(holder)))} values"
        return InputError(key=above, value=repr(value), problem=problem)
    if kind == "missing":
        return InputError(key=key, problem="is not given", remedy=f"give {key}=...")
    if kind == "dataclass_type":
        name = dotted(key, names_of(hint)[0])
        problem = f"must be a group of values; give {name}=..."
        return InputError(key=key, value=repr(value), problem=problem)
    unit = "".join(f" {mark.unit}" for mark in marks_of(hint) if isinstance(mark, Unit))
    otherwise = first["msg"].replace("Input should be", "must be")
    facts = {**first.get("ctx", {}), "unit": unit, "key": key}
    problem = PROBLEMS.get(kind, otherwise).format_map(facts)
    return InputError(key=key, value=repr(value), problem=problem)


def hint_of(hint: Any, part: str | int) -> Any:
    """The annotation of a field of a model, or of an entry of a table or list; None: unknown."""
    plain = plain_hint(hint)
    if is_dataclass(plain):
        return field_hints(plain).get(str(part))  # type: ignore[arg-type]
    arguments = get_args(plain)
    if isinstance(plain, Mapping):
        return plain.get(part)
    if is_typeddict(plain):
        return get_type_hints(plain, include_extras=True).get(str(part))
    if get_origin(plain) is tuple and arguments[-1] is not ...:
        return arguments[part] if isinstance(part, int) and part < len(arguments) else None
    is_container = isinstance(get_origin(plain), type)
    return arguments[-1 if issubclass(get_origin(plain), Mapping) else 0] if is_container else None


def names_of(hint: Any) -> list[str]:
    """The fields of a model."""
    return list(field_hints(plain_hint(hint)))


@cache
def field_hints(cls: Any) -> dict[str, Any]:
    """The annotations of a model's fields, with their marks, in order."""
    hints = get_type_hints(cls, include_extras=True)
    return {name: hints[name] for name in cls.__dataclass_fields__}


def plain_hint(hint: Any) -> Any:
    """The annotation without its marks and without None."""
    if get_origin(hint) is Annotated:
        return plain_hint(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        members = [member for member in get_args(hint) if member is not type(None)]
        return plain_hint(members[0]) if len(members) == 1 else hint
    return hint


def marks_of(hint: Any) -> list[Any]:
    """The marks of an annotation and of its members."""
    own = list(getattr(hint, "__metadata__", ()))
    inner = get_args(hint) if get_origin(hint) in (Annotated, Union, UnionType) else ()
    return own + [mark for member in inner for mark in marks_of(member)]
