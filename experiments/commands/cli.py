"""The `testbed` command: finds the subcommand's module; turns every error into one line and exit code 2."""

import os
import sys
from importlib import import_module
from importlib.util import find_spec

from experiments.commands.stopping import EXIT_TERMINATED, Terminated, stop_cleanly
from experiments.commands.working_folder import prepare_working_folder

COMMANDS = {
    "run": ("experiments.commands.run", "one simulation, or with -m a sweep; Hydra overrides as arguments"),
    "reproduce": ("experiments.commands.reproduce", "figures and tables of the paper, with a scorecard"),
    "capacity": ("experiments.commands.capacity", "the highest rate at which requests keep their objectives"),
    "bench": ("experiments.commands.bench", "how fast the simulator is"),
    "list": ("experiments.commands.listing", "every policy, scheduler, trace, ... that a config can name"),
    "import-profile": (
        "experiments.commands.import_profile",
        "layer times of LLMServingSim or AIConfigurator as a profile",
    ),
    "compare-profiles": ("experiments.commands.compare_profiles", "how far one profile is off another, by section"),
    "import-model": ("experiments.commands.import_model", "a Hugging Face config.json as a model"),
    "validate": ("experiments.commands.validate", "replay a real server's log and print the errors"),
    "validate-batches": (
        "experiments.commands.validate_batches",
        "latencies of static batches, such as FasterTransformer's, against measured kernels",
    ),
    "fit-software": ("experiments.commands.fit_software", "software times of a server from its logs"),
    "check": ("experiments.commands.check", "hold a memory policy to the contract: my_module:MyPolicy"),
    "compare": ("experiments.commands.compare", "finished runs side by side, simulated or on a GPU"),
    "report": ("experiments.commands.report", "one self-contained HTML page of results"),
    "show-memory": ("experiments.commands.show_memory", "physical blocks over time, as a picture"),
    "timeline": ("experiments.commands.timeline", "requests, iterations and pool of a run, for Perfetto"),
    "calibrate": ("kernels.measure.calibrate_command", "measure a GPU into a cost profile"),
    "bench-kernels": ("kernels.measure.bench_command", "check and time the CUDA kernels"),
    "compile": ("experiments.commands.compile", "the simulator as C, for speed; --remove takes it back"),
    "completion": ("experiments.commands.completion", "tab completion for bash"),
    "derive-profile": ("experiments.commands.derive_profile", "carry a profile to another GPU's data sheet"),
}
USAGE = "usage: testbed [--debug] COMMAND ..."
HELP = ("-h", "--help")
ARGUMENTS = "experiments.commands.arguments.{}"


def main() -> None:
    """Entry point of the console command."""
    stop_cleanly()
    sys.exit(dispatch(sys.argv[1:]))


def dispatch(argv: list[str]) -> int:
    """Run a subcommand; the exit code. --debug, anywhere, lets tracebacks through."""
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
        return _call(argv[0], argv[1:])
    except KeyboardInterrupt as stopped:
        terminated = isinstance(stopped, Terminated)
        print(f"testbed: {'terminated' if terminated else 'interrupted'}", file=sys.stderr)
        return EXIT_TERMINATED if terminated else 130
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            raise
        from experiments.commands.one_line import EXIT_BAD_INPUT, one_line

        print(f"testbed {argv[0]}: error: {one_line(error)}", file=sys.stderr)
        return EXIT_BAD_INPUT


def help_text() -> str:
    """All subcommands that are there."""
    lines = [f"  {name:<15}{text}" for name, (module, text) in COMMANDS.items() if _exists(module)]
    return "\n".join(
        [
            USAGE,
            "",
            "A testbed for KV-cache memory management in LLM serving.",
            "",
            *lines,
            "",
            "testbed COMMAND --help explains a command. --debug shows the traceback of an error.",
            "testbed --version says which testbed this is.",
        ]
    )


def version_text() -> str:
    """The installed version, and where the code lies."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("kvcache-testbed")
    except PackageNotFoundError:
        installed = "of a source tree that is not installed"
    return f"testbed {installed}, Python {sys.version.partition(' ')[0]}"


def _call(name: str, argv: list[str]) -> int:
    if name not in COMMANDS or not _exists(COMMANDS[name][0]):
        from experiments.runs.known_choices import did_you_mean
        from testbed.core.errors import InputError

        raise InputError(f"no such command{did_you_mean(name, COMMANDS)}; choose from {', '.join(COMMANDS)}")
    if not set(HELP).isdisjoint(argv):
        _help(name, argv)
    return import_module(COMMANDS[name][0]).main(argv) or 0


def _help(name: str, argv: list[str]) -> None:
    """Answer without what only the work needs, and end; what the command has no such answer for, it says itself."""
    arguments = ARGUMENTS.format(name.replace("-", "_"))
    if name == "run":
        import_module("experiments.commands.run_help").main(argv)
        sys.exit(0)
    if _exists(arguments):
        import_module(arguments).parser().parse_args(argv)


def _exists(module: str) -> bool:
    return find_spec(module) is not None


if __name__ == "__main__":
    main()
