"""The exchangeable parts of a run: a class (or its dotted name) with parameters, or an instance."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pkgutil import resolve_name
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import core_schema

from testbed.core.config_model import is_model, read, refusal_of
from testbed.core.errors import InputError
from testbed.core.spelling import did_you_mean, dotted
from testbed.run.constructor_parameters import parameters_of


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
        """The part of a mapping that describes it, of a class, or of an object."""
        if isinstance(values, Part):
            return values
        if not isinstance(values, Mapping):
            if values is None or isinstance(values, str | int | float | list):
                raise InputError(
                    key=key,
                    value=repr(values),
                    problem="names no class",
                    remedy=f"`testbed list {key}` shows the options",
                )
            return cls(values)
        if not isinstance(values.get("_target_"), str):
            raise InputError(
                key=key,
                problem="names no class",
                remedy=f"choose one by {key}=...; `testbed list` shows the options",
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

    def nested(self, key: str) -> "Iterator[tuple[str, Part]]":
        """The part, its parameters that are parts, theirs, and so on, each with its dotted key."""
        yield key, self
        for name, value in self.parameters.items():
            if isinstance(value, Part):
                yield from value.nested(dotted(key, name))

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
        """True if the target is a dotted name from a config, and not a class or instance that the
        caller passed.
        """
        return isinstance(self.target, str)

    @property
    def is_instance(self) -> bool:
        """True if the target is an instance, and not a class or function that builds one."""
        makes_one = (
            inspect.isclass(self.target)
            or inspect.isroutine(self.target)
            or isinstance(self.target, partial)
        )
        return not self.is_named and not makes_one

    def maker(self, key: str) -> Any:
        """The class or function that builds the instance; of an instance, its class."""
        if self.is_instance:
            return type(self.target)
        return locate(self.target, key) if isinstance(self.target, str) else self.target

    def make(self, key: str, *first: Any) -> Any:
        """Build the instance; `key` is the part's name in messages. Every failure is an InputError
        in one line.
        """
        if self.is_instance:
            return self.target
        target = self.maker(key)
        check_methods(target, key)
        checks_itself = not first and is_model(target)
        if not checks_itself:
            self.check_parameters(target, key)
        instances = {
            name: value.make(dotted(key, name)) if isinstance(value, Part) else value
            for name, value in self.parameters.items()
        }
        if checks_itself:
            return read(target, instances, key)
        check_kinds_of_parts(target, self.parameters, instances, key)
        with plug_in_errors(key, self.name):
            built = target(*first, **instances)
        if built is None:
            raise InputError(
                key=self.name,
                problem=f"returns None if {key} needs an object",
                remedy="name a class",
            )
        return built

    def check_parameters(self, target: Any, key: str) -> None:
        """Raise InputError for a parameter that is unknown or against its annotation. target: the
        class or function of the part. key: the part's name in messages.
        """
        declared = parameters_of(target)
        if declared.has_others:
            return
        unknown = next((name for name in self.parameters if name not in declared.hints), None)
        if unknown is not None:
            meant = did_you_mean(unknown, declared.hints)
            remedy = f"remove by ~{dotted(key, unknown)}" if self.is_named else ""
            raise InputError(key=self.name, problem=f"takes no {unknown}{meant}", remedy=remedy)
        values = {
            name: value for name, value in self.parameters.items() if not isinstance(value, Part)
        }
        try:
            declared.validator.validate_python(values)
        except ValidationError as error:
            raise refusal_of(error, declared.hints, key) from None


def check_kinds_of_parts(
    target: Any, parameters: Mapping[str, Any], instances: Mapping[str, Any], key: str
) -> None:
    """Raise InputError for a parameter that is to be an object of one of this project's classes,
    and is null, text or another object.
    """
    hints = parameters_of(target).hints
    for name in [
        name for name, value in parameters.items() if isinstance(value, Part | str | None)
    ]:
        value, hint = instances[name], hints.get(name, Any)
        members = get_args(hint) or (hint,)
        kinds = [kind for kind in members if kind is not type(None)]
        are_ours = all(
            isinstance(kind, type) and kind.__module__.startswith("testbed.") for kind in kinds
        )
        if are_ours and not isinstance(value, members):
            place, kind = dotted(key, name), kinds[0]
            given = value if isinstance(value, str) else type(value).__qualname__
            choice = f"choose one by {name}@{place}=NAME, or derive a class from it"
            raise InputError(
                key=place,
                value="null" if value is None else given,
                problem=f"is no {kind.__module__}.{kind.__qualname__}",
                remedy="leave it out" if value is None else choice,
            )


def check_methods(target: Any, key: str) -> None:
    """Raise InputError for a class that lacks methods of its kind: it cannot be built."""
    missing = [f"{method}()" for method in sorted(getattr(target, "__abstractmethods__", ()))]
    if missing:
        raise InputError(
            key=key,
            value=f"{target.__module__}.{target.__qualname__}",
            problem=f"does not define {', '.join(missing)}",
            remedy="its base class says what they do",
        )


def locate(name: str, key: str) -> Callable[..., Any]:
    """The class or function of a dotted name."""
    module, _, last = name.rpartition(".")
    loaded = sys.modules.get(module)  # `resolve_name` looks every package up
    target = None if loaded is None else vars(loaded).get(last)
    with plug_in_errors(key, name):
        try:
            target = resolve_name(name) if target is None else target
        except (ImportError, AttributeError) as error:
            problem, remedy = f"cannot be loaded: {error}", _way_to_load(name, error)
            raise InputError(key=key, value=name, problem=problem, remedy=remedy) from error
    if not callable(target):
        raise InputError(
            key=f"{key}._target_",
            value=name,
            problem="is no class or function",
            remedy="give MODULE.CLASS",
        )
    return target  # type: ignore[no-any-return]


def _way_to_load(name: str, error: Exception) -> str:
    """The remedy for a name that cannot be loaded, if there is one."""
    module = name.partition(".")[0]
    if f"{name}.".endswith(".py."):
        return "give MODULE:CLASS"
    if ".py." in name:
        return f"name the module without .py, as in {name.replace('.py.', ':')}"
    if isinstance(error, ModuleNotFoundError) and error.name == module:
        return f"be in the folder of {module}.py, or add that folder to PYTHONPATH"
    return ""


@contextmanager
def plug_in_errors(key: str, name: str) -> Iterator[None]:
    """Turn the errors of a plug-in that is loaded or built into InputErrors that name the key, or
    the class if that is clearer.
    """
    try:
        yield
    except MemoryError:  # no fault of the plug-in
        raise
    except InputError as error:
        if error.key == key or error.key.startswith((f"{key}.", f"{key}=")):
            raise
        raise error.within(key) from error
    except SystemExit as error:
        raise InputError(
            key=name,
            problem=f"calls sys.exit({error.code!r}) when loaded or built",
            remedy="raise an error instead",
        ) from error
    except OSError as error:
        problem = f"{error.filename or name}: {error.strerror or error}"
        raise InputError(key=key, problem=problem) from error
    except ValueError as error:
        raise InputError(key=key, problem=str(error)) from error
    except Exception as error:
        problem = str(error) if isinstance(error, TypeError) else f"{type(error).__name__}: {error}"
        raise InputError(key=key, problem=f"{name}: {problem}") from error
