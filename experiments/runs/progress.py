"""Lines for people: the progress of a long run, an error with its cause, paths by the ends that
distinguish them.
"""

import re
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testbed.run.simulate import Counts

EXIT_BAD_INPUT = 2
# The project, Python's own library, and folders of what is installed
NOT_PLUG_INS = (Path(__file__).parents[2], Path(sysconfig.get_path("stdlib")))
INSTALLED = {"site-packages", "dist-packages"}
SPEAK_S = 10.0
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+(?=>)")


def one_line(error: BaseException) -> str:
    """The message of an error, prefixed by its file or type where the message does not name
    them, and followed by the line of the plug-in that raised it, if one did.
    """
    line = plug_in_line(error)
    return f"{_message(error)} ({line})" if line else _message(error)


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


def _message(error: BaseException) -> str:
    if isinstance(error, OSError):
        return _flat(f"{error.filename or 'output'}: {error.strerror or error}")
    if isinstance(error, SystemExit):
        return f"a plug-in: calls sys.exit({error.code!r}) (raise an error instead)"
    if isinstance(error, ValueError):
        return _flat(str(error))
    hydra = type(error).__module__.startswith(("hydra", "omegaconf"))  # without importing them
    return _flat(
        str(error).partition("Config search path")[0]
        if hydra
        else f"{type(error).__name__}: {error}"
    )


def short_names(paths: Sequence[Path]) -> list[str]:
    """The shortest end of each path that distinguishes it from the others."""
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(path_parts[-depth:]) for path_parts in parts]
        if len(set(names)) == len(names):
            return names
    return names


def _flat(message: str) -> str:
    """A message on one line, without the addresses by which Python shows objects."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    text = " ".join(line if line.endswith((".", ":", ";")) else f"{line};" for line in lines)
    return ADDRESS.sub("", text).rstrip("; ") or "unknown error"


def watched(recorder: "Counts", num_requests: int) -> AbstractContextManager[None]:
    """While a simulation runs, print the number of requests that have finished or were rejected,
    and when the others will have at this pace.
    """
    began = time.monotonic()

    def ended() -> int:
        return recorder.totals.finished + recorder.totals.rejected

    def text() -> str:
        done, seconds = ended(), time.monotonic() - began
        rate = pace(done, num_requests, seconds)
        return f"simulating: {done:,} of {num_requests:,} requests ({rate})"

    return status_line(text)


def pace(done: int, total: int, seconds: float) -> str:
    """How many were done a second, and the seconds that the others take, in words."""
    return f"{done / seconds:,.3g}/s{left(done, total, seconds)}"


def left(done: float, total: float, seconds: float) -> str:
    """The seconds that the rest takes at the pace until now, in words; empty before the first."""
    return f", about {(total - done) * seconds / done:,.0f} s left" if done else ""


class Progress:
    """How many of some things are done, at which pace, and when the others will be, in words."""

    def __init__(self, things: str) -> None:
        self.things = things
        self._began = time.monotonic()
        self._done = self._total = 0
        self._shortened: int | None = None

    def checked(self, done: int, total: int) -> None:
        """So many are done, of so many."""
        self._done, self._total = done, total

    def shortened(self, num_calls: int) -> None:
        """A violation was found, and its shortest calls until now are so many."""
        self._shortened = num_calls

    def __str__(self) -> str:
        """Empty while nothing is done."""
        if self._shortened is not None:
            return f": a clause is broken, by {self._shortened} calls or fewer; shortens them"
        if not self._done:
            return ""
        rate = pace(self._done, self._total, time.monotonic() - self._began)
        text = f": {self._done:,} of {self._total:,} {self.things}"
        return f"{text} ({rate})" if self._done < self._total else f"{text}, then the last checks"


@contextmanager
def status_line(text: Callable[[], str]) -> Iterator[None]:
    """While the body runs, print a line every ten seconds; does not change the body. If SIGINT or
    SIGTERM ends it, its exception notes the line.
    """
    began, done = time.monotonic(), threading.Event()

    def speak() -> None:
        while not done.wait(SPEAK_S):
            print(f"{text()}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    try:
        yield
    except KeyboardInterrupt as stopped:
        stopped.add_note(text())
        raise
    finally:
        done.set()
        thread.join()
