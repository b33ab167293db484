"""The `testbed` command: finds the function of a subcommand; turns every error into one line and
exit code 2.
"""

import os
import signal
import sys
import threading
from pkgutil import resolve_name
from types import FrameType
from typing import NoReturn

from testbed.core.errors import InputError
from testbed.core.spelling import did_you_mean
from testbed.experiments.commands.terminal import commands, parsed
from testbed.experiments.runs.progress import EXIT_BAD_INPUT, one_line

HELP_TEXT = """usage: testbed [--debug] COMMAND ...

A testbed for KV-cache memory management in LLM serving.

{commands}

testbed COMMAND --help explains a command. --debug shows the traceback of an error.
testbed --version prints the version."""
HELP = ("-h", "--help")
EXIT_TERMINATED = 143
ROOT = os.path.realpath(os.path.dirname(os.path.dirname(str(sys.modules["testbed"].__file__))))


def main(argv: list[str] | None = None) -> int:
    """Entry point of the console command: run a subcommand, of sys.argv or of these words, and
    return the exit code. With --debug, anywhere, errors show their traceback.
    """
    if argv is None:
        argv = sys.argv[1:]
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _terminated)
    debug = "--debug" in argv
    argv = [argument for argument in argv if argument != "--debug"]
    if not argv or argv[0] in HELP:
        width = max(map(len, commands())) + 2
        lines = (f"  {name:<{width}}{command.about}" for name, command in commands().items())
        print(HELP_TEXT.format(commands="\n".join(lines)))
        return 0
    if argv[0] in ("-V", "--version"):
        from testbed.compiled import release

        version = release() or "of a source tree that is not installed"
        print(f"testbed {version}, Python {sys.version.partition(' ')[0]}")
        return 0
    try:
        prepare_working_folder()
        return call(argv[0], argv[1:]) or 0
    except KeyboardInterrupt as stopped:
        terminated = isinstance(stopped, Terminated)
        print(f"testbed: {'terminated' if terminated else 'interrupted'}", file=sys.stderr)
        return EXIT_TERMINATED if terminated else 130
    except BrokenPipeError:  # the reader of the output has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            raise
        print(f"testbed {argv[0]}: error: {one_line(error)}", file=sys.stderr)
        return EXIT_BAD_INPUT


def call(name: str, argv: list[str]) -> int | None:
    """Parse the arguments of a command, and call its function with them. Its module, which may
    import much, is not imported for --help.
    """
    if name not in commands():
        raise InputError(
            f"no such command{did_you_mean(name, commands())}; choose from {', '.join(commands())}"
        )
    given = parsed(name, argv)
    code: int | None = resolve_name(commands()[name].function)(given)
    return code


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # a second SIGTERM must not interrupt the clean-up
    raise Terminated


def prepare_working_folder() -> None:
    """Put the working folder last, in this process and in those that a launcher starts."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        raise InputError(
            "the working folder: has been deleted (change to one that exists)"
        ) from None
    put_last(here)
    os.environ["PYTHONSAFEPATH"] = "1"  # else `python -m`, which starts workers, would put it first
    if os.path.realpath(here) == ROOT:  # a source tree that is not installed
        known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*filter(None, known), here]))
        return
    for name in ("testbed.py", os.path.join("testbed", "__init__.py")):
        if os.path.isfile(os.path.join(here, name)):
            print(
                f"testbed: note: {name} is not imported, for testbed has a package of this name",
                file=sys.stderr,
            )


def put_last(folder: str) -> None:
    """Put a folder last on the import path; the source tree keeps its place."""
    if os.path.realpath(folder) != ROOT:
        sys.path[:] = [
            entry for entry in sys.path if os.path.realpath(entry) != os.path.realpath(folder)
        ]
    if folder not in sys.path:
        sys.path.append(folder)


if __name__ == "__main__":
    sys.exit(main())
