"""Functions that raise no version, for tests that must notice it."""

from collections.abc import Callable, Iterable
from typing import Any


def unraised(
    function: Callable[..., Any], versions_of: Callable[..., Iterable[tuple[Any, str]]]
) -> Callable[..., Any]:
    """The function, after which the versions that it raises are as before. versions_of: of its
    arguments, each object that has a version and the attribute's name.
    """

    def call(*args: Any, **options: Any) -> Any:
        before = [(of, name, getattr(of, name)) for of, name in versions_of(*args, **options)]
        answer = function(*args, **options)
        for of, name, version in before:
            setattr(of, name, version)
        return answer

    return call
