"""The `testbed` command: runs the command of the words; every error is one line and exit code 2.

`testbed --help` and `--version` are answered before the command-line library is imported.
"""

import atexit
import io
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from testbed.core.errors import InputError, PlugInError
from testbed.core.garbage import OF_A_COMMAND, collections_after, leave_garbage
from testbed.experiments.cli.commands import help_text
from testbed.experiments.cli.working_folder import plug_ins_in, prepare_working_folder

HELP = ("-h", "--help")
VERSION = ("-V", "--version")
EXIT_CLOSED_OUTPUT = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


def main(words: Sequence[str] | None = None) -> int:
    """Entry point of the console command: run these words (default: those of sys.argv), and
    return the exit code. With --debug, anywhere, an error shows its traceback.
    """
    if words is None:
        words = sys.argv[1:]
        atexit.register(leave_garbage)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _terminated)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    _write_whole_lines()
    try:
        code = _answered(words)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as stopped:
        return _stopped(stopped, words)
    except BrokenPipeError:  # the reader of the output has closed it, as `head` does
        _drop_output()
        return EXIT_CLOSED_OUTPUT
    except Exception as error:
        if debug:
            raise
        return _refused(words, error)


def _answered(words: Sequence[str]) -> int:
    """Print the answer to these words; the exit code."""
    if not words or words[0] in HELP:
        print(help_text())
        return 0
    if words[0] in VERSION:
        print(version())
        return 0
    prepare_working_folder(words)
    with collections_after(OF_A_COMMAND):
        return call(words[0], words[1:]) or 0


def _write_whole_lines() -> None:
    """Give standard output a buffer where it has none (PYTHONUNBUFFERED): without one, Python
    loses what is left of a text that the disk has taken in part, and raises nothing.
    """
    out = sys.stdout
    if isinstance(getattr(out, "buffer", None), io.RawIOBase):
        sys.stdout = open(  # noqa: SIM115 (open until the process ends)
            out.fileno(), "w", 1, out.encoding, out.errors, out.newlines, closefd=False
        )


def _drop_output() -> None:
    """What is left in the buffer of standard output goes nowhere."""
    with suppress(OSError, ValueError):  # no file, as under a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def call(command: str, arguments: Sequence[str] = ()) -> int | None:
    """Run a command, such as "show memory", in this process. The exit code, or None for success.
    Raises the command's errors, and InputError for arguments that it does not take.
    """
    from cyclopts import CycloptsError

    from testbed.experiments.cli.app import application

    words = [*command.split(), *arguments]
    try:
        code: int | None = application(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        from testbed.experiments.cli.usage_errors import refusal_of

        raise refusal_of(error, words) from None
    return code


def version() -> str:
    """The versions of the package and of Python."""
    from testbed.version import release

    installed = release() or "of a source tree that is not installed"
    return f"testbed {installed}, Python {sys.version.partition(' ')[0]}"


def _refused(words: Sequence[str], error: Exception) -> int:
    """Print an error as one line that begins with the command."""
    from testbed.experiments.cli.usage_errors import command_of
    from testbed.experiments.runs.error_lines import one_line

    if isinstance(error, OSError) and error.filename is None:
        _drop_output()
    command = command_of(words) if words else "testbed"
    print(f"{command}: error: {one_line(error)}{_way_out(words, error)}", file=sys.stderr)
    return EXIT_BAD_INPUT


def _way_out(words: Sequence[str], error: Exception) -> str:
    """Where a plug-in may have broken its contract during a run: what finds the fault."""
    named = plug_ins_in(words)
    is_fault = named and words[0] != "check" and not isinstance(error, (InputError, OSError))
    if not (is_fault or isinstance(error, PlugInError)):
        return ""
    plug_in = named[0] if len(set(named)) == 1 else "MODULE:CLASS"
    return f"; `testbed check {plug_in}` finds the shortest calls that break a clause"


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    # A second SIGTERM must not interrupt the clean-up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def _stopped(stopped: KeyboardInterrupt, words: Sequence[str]) -> int:
    terminated = isinstance(stopped, Terminated)
    word = "terminated" if terminated else "interrupted"
    print(f"testbed: {word}{_continued(words)}", file=sys.stderr)
    return EXIT_TERMINATED if terminated else EXIT_INTERRUPTED


def _continued(words: Sequence[str]) -> str:
    """That the same line goes on where it was stopped, for commands that keep finished runs."""
    is_sweep = words[0] in ("run", "compare") and any(
        word in ("-m", "--multirun") or word.startswith("--seeds") for word in words
    )
    if is_sweep or words[0] in ("capacity", "plan", "reproduce"):
        return "; the same line continues: what is complete is not run again"
    return ""


if __name__ == "__main__":
    sys.exit(main())
