"""The options that every command takes, anywhere among its words: --debug, --quiet and
--time-limit S.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from math import isfinite
from types import FrameType
from typing import NamedTuple

from testbed.core.errors import InputError
from testbed.experiments.runs.quiet import QUIET

DEBUG_OPTION, LIMIT_OPTION = "--debug", "--time-limit"
QUIET_OPTIONS = ("--quiet", "-q")
Handler = Callable[[int, FrameType | None], None]


class CommonOptions(NamedTuple):
    """debug: an error shows its traceback. quiet: standard error has errors alone. limit_s: seconds
    from began_s on, after which the command ends as by SIGTERM; None: never.
    """

    debug: bool = False
    quiet: bool = False
    limit_s: float | None = None
    began_s: float = 0.0

    @property
    def time_limit(self) -> str:
        """The option as it is given."""
        return f"{LIMIT_OPTION} {self.limit_s:g}"

    @property
    def is_over(self) -> bool:
        """True if the time limit is reached."""
        return self.limit_s is not None and time.monotonic() - self.began_s >= self.limit_s

    @contextmanager
    def in_force(self, terminated: Handler) -> Iterator[None]:
        """Keep to them while the body runs. terminated: handles SIGTERM meanwhile, if there is a
        time limit.
        """
        limit = nullcontext() if self.limit_s is None else time_limit(self.limit_s, terminated)
        with silence() if self.quiet else nullcontext(), limit:
            yield


NO_OPTIONS = CommonOptions()


def separated(words: Sequence[str]) -> tuple[CommonOptions, list[str]]:
    """The common options among these words, and the other words in order. Raises InputError for a
    time limit that is no number of seconds.
    """
    others, limit = list[str](), None
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name == LIMIT_OPTION:
            limit = _seconds(value if equals else next(rest, ""))
        elif word not in (DEBUG_OPTION, *QUIET_OPTIONS):
            others.append(word)
    is_quiet = any(option in words for option in QUIET_OPTIONS)
    return CommonOptions(DEBUG_OPTION in words, is_quiet, limit, time.monotonic()), others


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not (seconds > 0 and isfinite(seconds)):
        problem = "must be a number of seconds above 0"
        raise InputError(key=LIMIT_OPTION, value=text or None, problem=problem)
    return seconds


@contextmanager
def silence() -> Iterator[None]:
    """The body prints neither progress nor notes: what it says on standard error is dropped."""
    token = QUIET.set(True)
    try:
        with open(os.devnull, "w", encoding="utf-8") as nothing, redirect_stderr(nothing):
            yield
    finally:
        QUIET.reset(token)


@contextmanager
def time_limit(seconds: float, terminated: Handler) -> Iterator[None]:
    """SIGTERM reaches this process after `seconds`, unless the body ends before."""
    before = signal.signal(signal.SIGTERM, terminated)
    alarm = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGTERM))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        signal.signal(signal.SIGTERM, before)
