"""Functions without one line of their source, for tests that must notice that it is missing."""

import inspect
import sys
from collections.abc import Callable
from textwrap import dedent
from typing import Any


def without(function: Callable[..., Any], line: str) -> Callable[..., Any]:
    """The function without a line, which occurs once."""
    source = dedent(inspect.getsource(function))
    assert source.count(line) == 1
    names = dict(vars(sys.modules[function.__module__]))
    exec(source.replace(line, "pass"), names)
    made: Callable[..., Any] = names[function.__name__]
    return made
