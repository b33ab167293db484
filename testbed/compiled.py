"""Whether this build is compiled, and abstract classes for such a build
(`experiments/compiled_wheel.py` builds it).
"""

import abc
from abc import abstractmethod as abstractmethod
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from types import FunctionType
from typing import TYPE_CHECKING, Any


def release() -> str | None:
    """The installed version, and whether it is compiled; None for a source tree that is not
    installed.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("kvcache-testbed")
    except PackageNotFoundError:
        return None
    return f"{installed} (compiled)" if is_compiled() else installed


def is_compiled() -> bool:
    """Whether the simulator is imported as extension modules."""
    spec = find_spec("testbed.core.sequence")
    return spec is not None and str(spec.origin).endswith(tuple(EXTENSION_SUFFIXES))


class ABCMeta(abc.ABCMeta):
    """The metaclass of compiled abstract classes; mypyc does not call it and requires this name.

    Compiled classes would share one cache of isinstance() results in abc.ABCMeta. Their
    constructors neither refuse a class that lacks a method nor, where it has no __init__,
    arguments.
    """

    __module__ = "abc"
    __instancecheck__ = type.__instancecheck__
    __subclasscheck__ = type.__subclasscheck__

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        missing = getattr(cls, "__abstractmethods__", ())  # a closed class has none, not even ()
        if missing or has_no_constructor(cls):
            abstract = {name: getattr(cls, name) for name in missing}
            abc.ABCMeta(cls.__name__, (), abstract)(*args, **kwargs)  # raises Python's own error
        return super().__call__(*args, **kwargs)


def has_no_constructor(kind: Any) -> bool:
    """Whether a compiled abstract class or its subclass takes no arguments; False where Python
    checks it itself.
    """
    native = issubclass(type(kind), ABCMeta)
    return (
        native and kind.__init__ is object.__init__ and not isinstance(kind.__new__, FunctionType)
    )


if TYPE_CHECKING:
    from abc import ABC as ABC

    from mypy_extensions import mypyc_attr as mypyc_attr
else:
    mypyc_attr = None  # read by the compiler, never called

    class ABC(metaclass=ABCMeta):
        """What compiled modules import as `abc.ABC`."""

        __slots__ = ()


def settle(cls: Any, *abstract: str) -> None:
    """Mark the methods of a compiled class that its source declares abstract, in addition to those
    of its bases.
    """
    if issubclass(type(cls), ABCMeta):
        for name in abstract:
            if not name.startswith("__"):  # a type slot: setting it would change unrelated classes
                setattr(cls, name, abstractmethod(lambda *args, **kwargs: None))
        cls.__abstractmethods__ = frozenset()
        abc.update_abstractmethods(cls)
