"""A compiled build of these modules, where `testbed compile` has made one: found first, refused where it is old.

The build is a folder of its own, laid out like the sources: an extension module for each module, one that all of them
share, and a manifest with SHA-256, size, mtime in ns and path of every source, one a line. Nothing of it can be
imported without the finder, and there is no finder before every source was found unchanged.
"""

import abc
import os
import sys
from collections.abc import Callable
from functools import wraps
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SUFFIX = EXTENSION_SUFFIXES[0]  # of one Python on one platform: another one has a build of its own
FOLDER = os.path.join(ROOT, "testbed", ".compiled", SUFFIX.strip(".").partition(".")[0])
MANIFEST = "manifest.txt"
SHARED = "testbed__mypyc"  # what mypyc calls the extension module that holds the code of all others


class StaleBuildError(ImportError):
    """The compiled build does not belong to the sources that are there."""


class Finder:
    """Finds the modules of a build before Python looks for their sources."""

    def __init__(self, folder: str, sources: list[str]) -> None:
        stems = [SHARED, *(path.removesuffix(".py") for path in sources)]
        self.files = {stem.replace("/", "."): os.path.join(folder, stem + SUFFIX) for stem in stems}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Where a module lies, if it is compiled."""
        if name not in self.files:
            return None
        from importlib.util import spec_from_file_location

        return spec_from_file_location(name, self.files[name])


def use_build(folder: str = FOLDER, root: str = ROOT) -> bool:
    """Import what the build holds from now on; False where there is none. Raises StaleBuildError."""
    try:
        with open(os.path.join(folder, MANIFEST), encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return False
    sources = [line.split(" ", 3) for line in lines]
    for digest, size, mtime_ns, path in sources:
        if not is_same(os.path.join(root, path), digest, int(size), int(mtime_ns)):
            raise StaleBuildError(
                f"the compiled build is older than {path}: `testbed compile` builds it anew, "
                "`testbed compile --remove` takes it away"
            )
    sys.meta_path.insert(0, Finder(folder, [path for *_, path in sources]))
    return True


def is_same(path: str, digest: str, size: int, mtime_ns: int) -> bool:
    """Whether a source is what it was; it is read only where its time stamp has changed."""
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return False
    if stat.st_size != size:
        return False
    return stat.st_mtime_ns == mtime_ns or digest_of(path) == digest


def digest_of(path: str) -> str:
    """SHA-256 of a file."""
    from hashlib import file_digest

    with open(path, "rb") as file:
        return file_digest(file, "sha256").hexdigest()


def as_abc(cls: Any, *abstract: str) -> None:
    """Make a compiled class the abstract base class that its source describes; every compiled module ends with this.

    mypyc passes over ABCMeta: what isinstance() remembers would be shared with the base, nothing would be abstract, and
    a plug-in that leaves out a method would be built.
    """
    if isinstance(cls, abc.ABCMeta):
        for name in abstract:
            if not name.startswith("__"):  # a slot: setting it would reach classes that this one has nothing to do with
                setattr(cls, name, abc.abstractmethod(_plain(name)))
        getattr(abc, "_abc_init")(cls)  # noqa: B009  # what ABCMeta itself calls; nothing public does it to a class
    if abstract:
        cls.__init__ = _refusing(cls.__init__)  # of the class itself; of those that extend it:
        cls.__init_subclass__ = classmethod(_refuse_abstract)


def _plain(name: str) -> Callable[..., None]:
    def method(*args: object, **kwargs: object) -> None:
        """Abstract."""

    method.__name__ = name
    return method


def _refusing(init: Callable[..., None]) -> Callable[..., None]:
    """This constructor, which Python calls and compiled code does not."""

    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        refuse_abstract(type(self))
        init(self, *args, **kwargs)

    return __init__


def _refuse_abstract(cls: Any) -> None:
    """Of a class that extends a compiled one: it is only made where nothing abstract is left."""
    if "__mypyc_attrs__" not in vars(cls) and "__new__" not in vars(cls):
        new = super(cls, cls).__new__

        def __new__(made: Any, *args: Any, **kwargs: Any) -> Any:
            refuse_abstract(made)
            return new(made, *args, **kwargs)

        cls.__new__ = staticmethod(__new__)


def refuse_abstract(cls: Any) -> None:
    """Raise what Python raises of a class that has abstract methods."""
    left = sorted(cls.__abstractmethods__)
    if left:
        methods = "methods" if len(left) > 1 else "method"
        raise TypeError(f"Can't instantiate abstract class {cls.__name__} with abstract {methods} {', '.join(left)}")
