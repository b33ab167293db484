"""The exchangeable parts of a run: a class (or its dotted name) with parameters, or an instance."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pkgutil import resolve_name
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from testbed.core.errors import InputError
from testbed.schema import check_kind, check_range, did_you_mean, dotted, typed

PLAIN = (int, float, bool)  # the types of parameters that are checked


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a run: `target` is a dotted name, a class or function, or an instance.

    A class or function is called with its context (the pool, for a policy) and `parameters` by
    name; parameters may be parts themselves.
    """

    target: Any
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_values(cls, values: Any, key: str) -> "Part":
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
        return called(partial(target, *first, **instances), key, self.name)

    def _check(self, target: Any, key: str) -> None:
        declared = _declared(target)
        for name, value in self.parameters.items():
            place = dotted(key, name)
            if declared is not None and name not in declared:
                meant = did_you_mean(name, declared)
                raise InputError(f"{self.name}: takes no {name}{meant or ';'} remove by ~{place}")
            _check_plain((declared or {}).get(name), value, place)
            if self.name.startswith("testbed."):
                _check_ranges(value, place)


def locate(name: str, key: str) -> Callable[..., Any]:
    target = called(partial(resolve_name, name), key, name)
    if not callable(target):
        raise InputError(f"{key}._target_={name}: is no class or function (give MODULE.CLASS)")
    return target  # type: ignore[no-any-return]


def called(make: Callable[[], Any], key: str, name: str) -> Any:
    """The result of `make`; its exceptions become InputErrors that name the key, or the class where
    that is clearer.
    """
    try:
        built = make()
    except InputError as error:
        raise InputError(_with_key(str(error), key)) from error
    except SystemExit as error:
        message = (
            f"{name}: calls sys.exit({error.code!r}) when loaded or built (raise an error instead)"
        )
        raise InputError(message) from error
    except (ImportError, AttributeError) as error:
        raise InputError(f"{key}={name}: cannot be loaded: {error}") from error
    except OSError as error:
        raise InputError(
            _with_key(f"{error.filename or name}: {error.strerror or error}", key)
        ) from error
    except Exception as error:
        what = (
            str(error)
            if isinstance(error, ValueError | TypeError)
            else f"{type(error).__name__}: {error}"
        )
        raise InputError(
            _with_key(f"{name}: {what}" if not isinstance(error, ValueError) else what, key)
        ) from error
    if built is None:
        raise InputError(f"{name}: returns None where {key} needs an object (name a class)")
    return built


def _with_key(message: str, key: str) -> str:
    return message if message.startswith(key) else f"{key}: {message}"


def _check_plain(hint: Any, value: Any, key: str) -> None:
    optional = get_origin(hint) in (Union, UnionType)
    kinds = [one for one in (get_args(hint) if optional else (hint,)) if one is not type(None)]
    if len(kinds) != 1 or (optional and value is None):
        return
    if kinds[0] in PLAIN:
        check_kind(kinds[0], value, key)
    elif isinstance(origin := get_origin(kinds[0]), type) and issubclass(origin, Mapping):
        typed(kinds[0], value, key)


def _check_ranges(value: Any, key: str) -> None:
    if isinstance(value, Mapping):
        for name, one in value.items():
            _check_ranges(one, dotted(key, str(name)))
    elif not isinstance(value, Part):
        check_range(value, key)


def _declared(target: Any) -> dict[str, Any] | None:
    """The type of every parameter, None where any name is accepted; a class may pass keywords to
    its base class.
    """
    found: dict[str, Any] = {}
    for one in target.__mro__[:-1] if inspect.isclass(target) else (target,):
        if one is not target and "__init__" not in vars(one):
            continue
        try:
            parameters = inspect.signature(one).parameters.values()
        except (TypeError, ValueError):  # a class written in C has no signature
            return None
        hints = _hints(one)
        plain = [
            parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD
        ]
        found = {parameter.name: hints.get(parameter.name) for parameter in plain} | found
        if len(plain) == len(parameters):
            return found
    return None


def _hints(target: Any) -> dict[str, Any]:
    """The annotations of a constructor or function; none where they cannot be read, as in a
    compiled class.
    """
    try:
        return get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except Exception:  # they name imports for type checkers only
        return {}
