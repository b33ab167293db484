"""The one place that instantiates classes by `_target_`, built-in ones and plug-ins alike."""

import inspect
from typing import Any, get_type_hints

import hydra.utils
from omegaconf import DictConfig, ListConfig

from experiments.runs.constructors import constructor
from experiments.runs.known_choices import did_you_mean
from testbed.core.errors import InputError


def make(node: DictConfig | None, *first: Any) -> Any:
    """Instantiate a node's class with `first` and then the node's own parameters by name."""
    if node is None or node.get("_target_") is None:
        raise InputError(f"{_name(node)} names no class; choose one by {_name(node)}=... (testbed list shows them)")
    target = _target(node)
    if target is not None:
        check_types(node, target)
        check_names(node, target)
    try:
        made = hydra.utils.instantiate(node, *first, _convert_="all")
    except SystemExit as error:
        raise InputError(_left(node, error)) from error
    if made is None:
        raise InputError(f"{node._target_} gives None where {_name(node)} needs an object; name a class")
    return made


def call(target: Any, node: DictConfig, *first: Any) -> Any:
    """The same of a class or function at hand; the node has its parameters."""
    check_types(node, target)
    check_names(node, target)
    parameters = {str(key): value for key, value in node.items() if not str(key).startswith("_")}
    for key, value in parameters.items():
        if isinstance(value, DictConfig | ListConfig):
            parameters[key] = hydra.utils.instantiate(value, _convert_="all")
    return target(*first, **parameters)


def check_types(node: DictConfig, target: Any) -> None:
    """A number where the class wants a number, for the plain types that its constructor declares."""
    try:
        said = constructor(target)
        hints = get_type_hints(said.__init__ if inspect.isclass(said) else said)
    except Exception:  # hints that cannot be read ask for nothing
        return
    for key, value in node.items():
        wanted = hints.get(str(key))
        if wanted is int and (not isinstance(value, int) or isinstance(value, bool)):
            raise InputError(f"{node._get_full_key(key)} is {value!r}; it must be a whole number")
        if wanted is float and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise InputError(f"{node._get_full_key(key)} is {value!r}; it must be a number")


def check_names(node: DictConfig, target: Any) -> None:
    """Every parameter of the node must be one of the constructor's."""
    try:
        parameters = inspect.signature(constructor(target)).parameters
    except (TypeError, ValueError):  # a class written in C says nothing of its parameters
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    unknown = [str(key) for key in node if not str(key).startswith("_") and str(key) not in parameters]
    if unknown:
        way_out = " ".join(f"~{node._get_full_key(key)}" for key in unknown)
        meant = did_you_mean(unknown[0], parameters)
        raise InputError(f"{node._target_} takes no {' or '.join(unknown)}{meant or ';'} remove by {way_out}")


def _target(node: DictConfig) -> Any:
    """The class, or None where instantiating it will say what is wrong."""
    try:
        return hydra.utils.get_object(str(node._target_))
    except SystemExit as error:
        raise InputError(_left(node, error)) from error
    except Exception:
        return None


def _left(node: DictConfig, error: SystemExit) -> str:
    return f"{node._target_} calls sys.exit({error.code!r}) where it is loaded or made; raise an error instead"


def _name(node: DictConfig | None) -> str:
    return "a part of the config" if node is None else str(node._get_full_key(None)) or "the config"
