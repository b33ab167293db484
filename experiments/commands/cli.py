"""The `testbed` command: finds the function of a subcommand; turns every error into one line and exit code 2."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import NoReturn

COMMANDS = {  # each is `main` of the module of its name, unless SHARED or ELSEWHERE names another function
    "run": "one simulation, or with -m a sweep; Hydra overrides as arguments",
    "reproduce": "figures and tables of the paper, with a scorecard",
    "plot": "draw a figure of the paper from its stored table",
    "capacity": "the highest request rate that meets an SLO",
    "bench": "the simulator's speed",
    "list": "every policy, scheduler, trace, ... that a config can select",
    "import-profile": "layer times of LLMServingSim or AIConfigurator as a profile",
    "import-model": "a Hugging Face config.json as a model",
    "import-lengths": "the lengths of the paper's artifact as a CSV",
    "validate": "replay a real server's log and print the errors",
    "validate-batches": "latencies of static batches, such as FasterTransformer's, against measured kernels",
    "validate-pairs": "runs on a GPU against their simulations, as tables",
    "fit-software": "software times of a server from its logs",
    "fit-profile": "fit a server's profile to a benchmark client's logs",
    "fit-constants": "fit the paper's unmeasured constants",
    "check": "check a memory policy against the contract: my_module:MyPolicy",
    "lockstep": "compare the installed vLLM's scheduler with ours",
    "compare": "compare finished runs, simulated or on a GPU",
    "report": "one self-contained HTML page of results",
    "show-memory": "owners of physical blocks over time, as an interactive page",
    "timeline": "requests, iterations and pool of a run, for Perfetto",
    "migrate": "rename what 0.2.0 renamed, in a YAML, CSV, profile or plug-in",
    "calibrate": "measure a GPU into a cost profile",
    "bench-kernels": "check and time the CUDA kernels",
    "pairs": "runs on a GPU that are compared with their simulation",
    "verify-engine": "check the GPU engine against transformers",
    "measure": "one measurement on a GPU, by name",
    "completion": "tab completion for bash and zsh",
    "validate-costs": "each profile left out and predicted from the others",
    "validate-transfers": "measured transfers against points held back, and against a GPU's swaps",
}
SHARED = {  # modules of several commands, whose functions have the commands' names
    "experiments.commands.check": "lockstep",
    "experiments.commands.fit": "fit-software fit-profile fit-constants",
    "experiments.commands.imports": "import-profile import-model import-lengths migrate",
    "experiments.commands.list": "completion",
    "experiments.commands.reproduce": "plot",
    "experiments.commands.show": "compare report show-memory timeline",
    "experiments.commands.speed": "capacity bench",
    "experiments.commands.validations": "validate-batches validate-costs validate-pairs validate-transfers",
    "kernels.commands": "calibrate bench-kernels pairs verify-engine measure",
}
ELSEWHERE = {name: f"{module}:{name.replace('-', '_')}" for module, names in SHARED.items() for name in names.split()}
HELP_TEXT = """usage: testbed [--debug] COMMAND ...

A testbed for KV-cache memory management in LLM serving.

{commands}

testbed COMMAND --help explains a command. --debug shows the traceback of an error.
testbed --version prints the version."""
HELP = ("-h", "--help")
EXIT_TERMINATED = 143
ROOT = os.path.realpath(os.path.dirname(os.path.dirname(str(sys.modules["testbed"].__file__))))


def main(argv: list[str] | None = None) -> int:
    """Entry point of the console command: run a subcommand, of sys.argv or of these words, and return the exit code.
    With --debug, anywhere, errors show their traceback."""
    if argv is None:
        argv = sys.argv[1:]
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _terminated)
    debug = "--debug" in argv
    argv = [argument for argument in argv if argument != "--debug"]
    if not argv or argv[0] in HELP:
        width = max(map(len, COMMANDS)) + 2
        print(HELP_TEXT.format(commands="\n".join(f"  {name:<{width}}{text}" for name, text in COMMANDS.items())))
        return 0
    if argv[0] in ("-V", "--version"):
        from testbed.compiled import release

        version = release() or "of a source tree that is not installed"
        print(f"testbed {version}, Python {sys.version.partition(' ')[0]}")
        return 0
    try:
        prepare_working_folder()
        return _command(argv[0])(argv[1:]) or 0
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
        from testbed.experiments.runs.progress import EXIT_BAD_INPUT, one_line

        print(f"testbed {argv[0]}: error: {one_line(error)}", file=sys.stderr)
        return EXIT_BAD_INPUT


def _command(name: str) -> Callable[[list[str]], int | None]:
    if name not in COMMANDS:
        from testbed.core.errors import InputError
        from testbed.schema import did_you_mean

        raise InputError(f"no such command{did_you_mean(name, COMMANDS)}; choose from {', '.join(COMMANDS)}")
    place = ELSEWHERE.get(name, f"experiments.commands.{name.replace('-', '_')}:main")
    module, _, function = place.partition(":")
    found: Callable[[list[str]], int | None] = getattr(import_module(f"testbed.{module}"), function)
    return found


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second SIGTERM must not interrupt the clean-up
    raise Terminated


def prepare_working_folder() -> None:
    """Put the working folder last, in this process and in those that a launcher starts."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        from testbed.core.errors import InputError

        raise InputError("the working folder: has been deleted (change to one that exists)") from None
    put_last(here)
    os.environ["PYTHONSAFEPATH"] = "1"  # else `python -m`, which starts workers, would put it first
    if os.path.realpath(here) == ROOT:  # a source tree that is not installed
        known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*filter(None, known), here]))
        return
    for name in ("testbed.py", os.path.join("testbed", "__init__.py")):
        if os.path.isfile(os.path.join(here, name)):
            print(f"testbed: note: {name} is not imported, for testbed has a package of this name", file=sys.stderr)


def put_last(folder: str) -> None:
    """Put a folder last on the import path; the source tree keeps its place."""
    if os.path.realpath(folder) != ROOT:
        sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != os.path.realpath(folder)]
    if folder not in sys.path:
        sys.path.append(folder)


if __name__ == "__main__":
    sys.exit(main())
