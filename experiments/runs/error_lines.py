"""Every error as a refusal, and as one line for people; paths by the ends that distinguish them."""

import re
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from testbed.core.errors import InputError

# The project, Python's own library, and folders of what is installed
NOT_PLUG_INS = (Path(__file__).parents[2], Path(traceback.__file__).parent)
INSTALLED = {"site-packages", "dist-packages"}
E = TypeVar("E", bound=BaseException)
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+(?=>)")


def one_line(error: BaseException) -> str:
    """An error as the text of its refusal, in one line."""
    return flat(str(as_refusal(error)))


def as_refusal(error: BaseException) -> InputError:
    """The error as a refusal, which can leave a process: a refusal itself, or one whose key is the
    file or the class of the error. Its remedy names the line of the plug-in that raised it, if one
    did.
    """
    line = plug_in_line(error)
    if isinstance(error, InputError):
        return error.with_remedy(line) if line else error
    if isinstance(error, OSError):
        problem = error.strerror or error
        return InputError(key=error.filename or "output", problem=problem, remedy=line)
    if isinstance(error, SystemExit):
        problem = f"calls sys.exit({error.code!r})"
        return InputError(key="a plug-in", problem=problem, remedy="raise an error instead")
    problem = flat(str(error))
    return InputError(key=type(error).__name__, problem=problem, remedy=line)


def error_behind(error: BaseException, kind: type[E]) -> E | None:
    """The first of `errors_behind` that is of this kind; None without one."""
    return next((other for other in errors_behind(error) if isinstance(other, kind)), None)


def errors_behind(error: BaseException) -> Iterator[BaseException]:
    """The error, and each one behind it once: behind an error are the one that it was raised in the
    handling of, and then its cause, which may be the error itself.
    """
    pending: list[BaseException | None] = [error]
    seen = set[int]()
    while pending:
        found = pending.pop()
        if found is not None and id(found) not in seen:
            yield found
            seen.add(id(found))
            pending += (found.__cause__, found.__context__)


def plug_in_line(error: BaseException) -> str:
    """FILE:LINE of the innermost call of code that is neither this project's nor installed; empty
    without one.
    """
    place = ""
    for cause in (error, error.__cause__):
        for frame in traceback.extract_tb(cause.__traceback__) if cause else ():
            path = Path(frame.filename)
            is_ours = any(map(path.is_relative_to, NOT_PLUG_INS))
            if path.is_file() and not is_ours and INSTALLED.isdisjoint(path.parts):
                place = f"{path.name}:{frame.lineno}"
    return place


def flat(message: str) -> str:
    """A message on one line, without the addresses by which Python shows objects."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    text = " ".join(line if line.endswith((".", ":", ";")) else f"{line};" for line in lines)
    return ADDRESS.sub("", text).rstrip("; ") or "unknown error"


def short_names(paths: Sequence[Path]) -> list[str]:
    """The shortest end of each path that distinguishes it from the others."""
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(path_parts[-depth:]) for path_parts in parts]
        if len(set(names)) == len(names):
            return names
    return names
