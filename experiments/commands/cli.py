"""The `testbed` command: finds the subcommand's module; turns every error into one line and exit code 2."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import NoReturn

from testbed.experiments.commands.working_folder import prepare_working_folder

COMMANDS = {
    "run": ("experiments.commands.run", "one simulation, or with -m a sweep; Hydra overrides as arguments"),
    "reproduce": ("experiments.commands.reproduce", "figures and tables of the paper, with a scorecard"),
    "plot": ("experiments.commands.plot", "draw a figure of the paper from its stored table"),
    "capacity": ("experiments.commands.capacity", "the highest request rate that meets an SLO"),
    "bench": ("experiments.commands.bench", "the simulator's speed"),
    "list": ("experiments.commands.listing", "every policy, scheduler, trace, ... that a config can select"),
    "import-profile": (
        "experiments.commands.import_profile",
        "layer times of LLMServingSim or AIConfigurator as a profile",
    ),
    "import-model": ("experiments.commands.import_model", "a Hugging Face config.json as a model"),
    "import-lengths": ("experiments.commands.import_lengths", "the lengths of the paper's artifact as a CSV"),
    "validate": ("experiments.commands.validate", "replay a real server's log and print the errors"),
    "validate-batches": (
        "experiments.commands.validate_batches",
        "latencies of static batches, such as FasterTransformer's, against measured kernels",
    ),
    "validate-pairs": ("experiments.commands.validate_pairs", "runs on a GPU against their simulations, as tables"),
    "fit-software": ("experiments.commands.fit_software", "software times of a server from its logs"),
    "fit-profile": ("experiments.commands.fit_profile", "fit a server's profile to a benchmark client's logs"),
    "fit-constants": ("experiments.commands.fit_constants", "divide a plain request's software time"),
    "check": ("experiments.commands.check", "check a memory policy against the contract: my_module:MyPolicy"),
    "lockstep": ("experiments.commands.lockstep", "compare the installed vLLM's scheduler with ours"),
    "compare": ("experiments.commands.compare", "compare finished runs, simulated or on a GPU"),
    "report": ("experiments.commands.report", "one self-contained HTML page of results"),
    "show-memory": ("experiments.commands.show_memory", "physical blocks over time, as a picture"),
    "timeline": ("experiments.commands.timeline", "requests, iterations and pool of a run, for Perfetto"),
    "migrate": ("experiments.commands.migrate", "rename what 0.2.0 renamed, in a YAML, CSV, profile or plug-in"),
    "calibrate": ("kernels.measure.calibrate", "measure a GPU into a cost profile"),
    "bench-kernels": ("kernels.commands:bench_kernels", "check and time the CUDA kernels"),
    "pairs": ("kernels.commands:pairs", "runs on a GPU that are compared with their simulation"),
    "verify-engine": ("kernels.commands:verify_engine", "check the GPU engine against transformers"),
    "ladder": ("kernels.commands:ladder", "attention in five steps: checked and timed, or drawn"),
    "measure": ("kernels.commands:measure", "one measurement on a GPU, by name"),
    "completion": ("experiments.commands.completion", "tab completion for bash and zsh"),
    "validate-costs": (
        "experiments.commands.validate_costs",
        "each profile left out and predicted from the others",
    ),
    "validate-transfers": (
        "experiments.commands.validate_transfers",
        "measured transfers against points held back, and against a GPU's swaps",
    ),
}
USAGE = "usage: testbed [--debug] COMMAND ..."
HELP = ("-h", "--help")
EXIT_TERMINATED = 143


def main() -> None:
    """Entry point of the console command."""
    stop_cleanly()
    sys.exit(dispatch(sys.argv[1:]))


def dispatch(argv: list[str]) -> int:
    """Run a subcommand; returns the exit code. With --debug, anywhere, errors show their traceback."""
    debug = "--debug" in argv
    argv = [argument for argument in argv if argument != "--debug"]
    if not argv or argv[0] in HELP:
        print(help_text())
        return 0
    if argv[0] in ("-V", "--version"):
        print(version_text())
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
        from testbed.experiments.runs.one_line import EXIT_BAD_INPUT, one_line

        print(f"testbed {argv[0]}: error: {one_line(error)}", file=sys.stderr)
        return EXIT_BAD_INPUT


def help_text() -> str:
    """The list of all subcommands."""
    lines = [f"  {name:<18}{text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            USAGE,
            "",
            "A testbed for KV-cache memory management in LLM serving.",
            "",
            *lines,
            "",
            "testbed COMMAND --help explains a command. --debug shows the traceback of an error.",
            "testbed --version prints the version.",
        ]
    )


def version_text() -> str:
    """The version of testbed and of Python."""
    from testbed.compiled import release

    return f"testbed {release() or 'of a source tree that is not installed'}, Python {sys.version.partition(' ')[0]}"


def _command(name: str) -> Callable[[list[str]], int | None]:
    """The function of a command; `main` where only the module is named."""
    if name not in COMMANDS:
        from testbed.core.errors import InputError
        from testbed.schema import did_you_mean

        raise InputError(f"no such command{did_you_mean(name, COMMANDS)}; choose from {', '.join(COMMANDS)}")
    module, _, function = COMMANDS[name][0].partition(":")
    found: Callable[[list[str]], int | None] = getattr(import_module(f"testbed.{module}"), function or "main")
    return found


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


def stop_cleanly() -> None:
    """Make SIGTERM raise Terminated in the main thread of this process."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminated)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second SIGTERM must not interrupt the clean-up
    raise Terminated


if __name__ == "__main__":
    main()
