"""Packages of the other systems: the version of one, and modules that this machine lacks."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from packaging.requirements import Requirement

from testbed.core.errors import InputError


def version_of(package: str, remedy: str) -> str:
    """The version of an installed package. Raises InputError if there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        raise InputError(key=package, problem="is not installed", remedy=remedy) from None


@contextmanager
def importing(package: str, remedy: str) -> Iterator[None]:
    """Raise InputError if the package is not installed, or if an import of the block fails."""
    release = version_of(package, remedy)
    try:
        yield
    except ImportError as error:
        problem = f"does not import: {error}"
        raise InputError(key=f"{package} {release}", problem=problem, remedy=remedy) from error


def check_class(
    key: str, part: object, classes: Collection[type], problem: str, remedy: str
) -> None:
    """Raise InputError for a part of no class that the other system has too: a subclass decides
    otherwise.
    """
    if type(part) not in classes:
        raise InputError(key=key, value=type(part).__name__, problem=problem, remedy=remedy)


def check_required(package: str, required: str) -> None:
    """Raise InputError if another version of `required` is installed than the package takes."""
    found = version(required)
    for requirement in map(Requirement, requires(package) or ()):
        if requirement.name == required and not requirement.specifier.contains(found):
            raise InputError(
                key=f"{required} {found}",
                problem=f"{package} {version(package)} requires {required}{requirement.specifier}",
                remedy="install such a version: its classes are made otherwise with others",
            )


class AbsentModules(MetaPathFinder, Loader):
    """Finds an empty module for all of the packages that are not installed, and for compiled
    modules of others. is_compiled: whether a module, by its full name, is one of these.
    """

    def __init__(
        self, packages: Iterable[str], is_compiled: Callable[[str], bool] = lambda name: False
    ) -> None:
        self._missing = {name for name in packages if find_spec(name) is None}
        self._is_compiled = is_compiled

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        is_missing = fullname.partition(".")[0] in self._missing
        if not (is_missing or self._is_compiled(fullname)):
            return None
        return ModuleSpec(fullname, self, is_package=is_missing)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to execute."""


class _Empty(ModuleType):
    """A module whose names are classes that nothing makes an instance of."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = Absent(name, (), {})
        setattr(self, name, made)
        return made


class Absent(type):
    """A class of a module that is absent: any name of it is itself, and nothing of it runs."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __call__(cls, *values: Any, **named: Any) -> "_Nothing":
        return _Nothing()


class _Nothing(int):
    """The result of a call of an absent function: 0, if a size is wanted."""

    def __getattr__(self, name: str) -> "_Nothing":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *values: Any, **named: Any) -> "_Nothing":
        return self
