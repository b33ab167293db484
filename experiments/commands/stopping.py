"""SIGTERM stops a command as Ctrl-C does: whatever is half done is taken back on the way out."""

import signal
import threading
from types import FrameType
from typing import NoReturn

EXIT_TERMINATED = 143


class Terminated(KeyboardInterrupt):
    """SIGTERM has come."""


def stop_cleanly() -> None:
    """Let SIGTERM raise Terminated in the main thread of this process."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminated)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: the way out is not to be stopped
    raise Terminated
