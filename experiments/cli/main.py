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

from testbed.core.errors import AnswerIsNo, InputError, PlugInError
from testbed.core.garbage import OF_A_COMMAND, collections_after
from testbed.experiments.cli import exit_codes
from testbed.experiments.cli.commands import help_text
from testbed.experiments.cli.common_options import NO_OPTIONS, CommonOptions, separated
from testbed.experiments.cli.working_folder import plug_ins_in, prepare_working_folder
from testbed.experiments.runs.notes import print_notes
from testbed.run.override_words import displaced_words

HELP = ("-h", "--help")
VERSION = ("-V", "--version")
NAMES_RUNS = ("compare",)  # whose words NAME=FOLDER set no values
LIBRARIES = {  # what they would do at their import, and no command needs
    "PYDANTIC_DISABLE_PLUGINS": "true",  # else pydantic reads the metadata of all packages
    "OPENBLAS_NUM_THREADS": "1",  # else NumPy starts a thread for each core
}
AGAIN_S = 0.05  # from a termination that a callback has swallowed to the next
RESERVE_BYTES = 1 << 20  # freed before the line that says that memory does not suffice


def console() -> NoReturn:
    """Entry point of the console command, which runs the words of sys.argv and ends the process."""
    codes = list[int]()
    atexit.register(_end_at_once, codes)  # before all others, so that it is called last
    codes.append(main())
    sys.exit(codes[0])


def _end_at_once(codes: Sequence[int]) -> None:
    """End the process without freeing every object of every library, which takes 15 ms and more;
    a process that ends by an exception, or is watched by a debugger or for coverage, ends as usual.
    """
    if not codes or sys.gettrace() is not None or sys.getprofile() is not None:
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # Python reports it
        return
    os._exit(codes[0])


def main(words: Sequence[str] | None = None) -> int:
    """Run these words (default: those of sys.argv, in a process of their own), and return the exit
    code.
    """
    if words is None:
        words = sys.argv[1:]
        for name, value in LIBRARIES.items():
            os.environ.setdefault(name, value)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _terminated)
            sys.unraisablehook = _terminated_again
    _write_whole_lines()
    try:
        reserve = bytearray(RESERVE_BYTES)
        return _ended(words)
    except MemoryError as error:  # also of a refusal, which imports
        reserve = bytearray()  # noqa: F841
        return _out_of_memory(words, error)


def _ended(words: Sequence[str]) -> int:
    """Answer these words, or print in one line why not; the exit code. Raises MemoryError."""
    options = NO_OPTIONS
    try:
        options, words = separated(words)
        with options.in_force(_terminated):
            code = _answered(words)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as stopped:
        return _stopped(stopped, words, options)
    except BrokenPipeError:  # the reader of the output has closed it, as `head` does
        _drop_output()
        return exit_codes.CLOSED_OUTPUT
    except MemoryError:
        raise
    except Exception as error:
        from testbed.experiments.runs.error_lines import error_behind

        # The clean-up of an interrupt may raise this error, as that of a half-made OmegaConf node.
        stopped_by = error_behind(error, KeyboardInterrupt) or _termination(options)
        if stopped_by is not None:
            return _stopped(stopped_by, words, options)
        if options.debug:
            raise
        return _refused(words, error)


def _answered(words: Sequence[str]) -> int:
    """Print the answer to these words; the exit code."""
    if not words or words[0] in HELP:
        print(help_text())
        return exit_codes.ANSWERED
    if words[0] in VERSION:
        print(version())
        return exit_codes.ANSWERED
    prepare_working_folder(words)
    if words[0] not in NAMES_RUNS:
        print_notes(displaced_words(words))
    with collections_after(OF_A_COMMAND):
        return call(words[0], words[1:]) or exit_codes.ANSWERED


def _write_whole_lines() -> None:
    """Give standard output a buffer if it has none (PYTHONUNBUFFERED): without one, Python
    loses what is left of a text that the disk has taken in part, and raises nothing.
    """
    out = sys.stdout
    if isinstance(getattr(out, "buffer", None), io.RawIOBase):
        sys.stdout = open(  # noqa: SIM115 (open until the process ends)
            out.fileno(), "w", 1, out.encoding, out.errors, out.newlines, closefd=False
        )


def _drop_output() -> None:
    """Drops what is left in the buffer of standard output."""
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
    """Print an error as one line that begins with the command; the exit code. If the answer is no,
    --json prints it as JSON too.
    """
    from testbed.experiments.cli.usage_errors import command_of
    from testbed.experiments.runs.error_lines import one_line

    if isinstance(error, OSError) and error.filename is None:
        _drop_output()
    command = command_of(words) if words else "testbed"
    print(f"{command}: error: {one_line(error)}{_way_out(words, error)}", file=sys.stderr)
    if not isinstance(error, AnswerIsNo):
        return exit_codes.BAD_INPUT
    if "--json" in words:
        from testbed.experiments.cli.json_answers import no_answer
        from testbed.experiments.cli.output import print_json

        print_json(no_answer(error))
    return exit_codes.NO


def _out_of_memory(words: Sequence[str], error: MemoryError) -> int:
    """Print that memory does not suffice, which must import nothing; the exit code."""
    needed = f" {error}" if str(error) else ""
    way_out = "ask for less, or allow the process more"
    print(
        f"testbed {words[0]}: error: memory: does not suffice{needed} ({way_out})", file=sys.stderr
    )
    return exit_codes.BAD_INPUT


def _way_out(words: Sequence[str], error: Exception) -> str:
    """The way out if a plug-in may have broken its contract during a run: what finds the fault."""
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


def _terminated_again(dropped: "sys.UnraisableHookArgs") -> None:
    """Python drops an exception that a callback raises, as one of importlib's: if that ended the
    process, end it once more when the callback has returned.
    """
    if not isinstance(dropped.exc_value, Terminated):
        sys.__unraisablehook__(dropped)
        return
    signal.signal(signal.SIGTERM, _terminated)
    threading.Timer(AGAIN_S, signal.raise_signal, [signal.SIGTERM]).start()


def _termination(options: CommonOptions) -> KeyboardInterrupt | None:
    """The end of the process that an error hides, if a library has made that of a Terminated."""
    is_ended = options.is_over or signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    return Terminated() if is_ended else None


def _stopped(stopped: KeyboardInterrupt, words: Sequence[str], options: CommonOptions) -> int:
    """Print what ended the command and how far it was; the exit code."""
    code, word = exit_codes.INTERRUPTED, "interrupted"
    if isinstance(stopped, Terminated):
        code, word = exit_codes.TERMINATED, "terminated"
        if options.is_over:
            code, word = exit_codes.TIME_LIMIT, f"ended by {options.time_limit}"
    how_far = "".join(f"; {note}" for note in getattr(stopped, "__notes__", ()))
    print(f"testbed: {word}{how_far}{_continued(words)}", file=sys.stderr)
    return code


def _continued(words: Sequence[str]) -> str:
    """The remark that the same line continues a stopped command, for commands that keep finished
    runs.
    """
    is_sweep = words[0] == "run" and any(
        word in ("-m", "--multirun") or word.startswith("--seeds") for word in words
    )
    if is_sweep or words[0] in ("capacity", "plan", "mend", "reproduce"):
        return "; the same line continues: what is complete is not run again"
    return ""


if __name__ == "__main__":
    console()
