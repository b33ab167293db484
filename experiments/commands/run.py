"""`testbed run`: one simulation, or with -m a sweep of them."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, TextIO, cast

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from experiments.commands.chosen_classes import check_choice, check_targets
from experiments.commands.console import wide_console
from experiments.commands.empty_folders import remove_empty
from experiments.commands.one_line import one_line
from experiments.commands.working_folder import put_last
from experiments.runs.choices import understood
from experiments.runs.identity import run_id
from experiments.runs.misspelt import keys_explained
from experiments.runs.model_group import register_models
from experiments.runs.point import holds, run_into
from experiments.runs.summary_table import summary_table
from experiments.runs.sweep_notes import note, notes, points
from experiments.runs.sweep_table import shown, write_sweep
from testbed.core.errors import InputError

AGAIN = "TESTBED_AGAIN"
HYDRA_FLAGS = {
    "-h", "--help", "--hydra-help", "--version", "-c", "--cfg", "--resolve", "-p", "--package", "-m", "--multirun",
    "-r", "--run", "-i", "--info", "-cp", "--config-path", "-cn", "--config-name", "-cd", "--config-dir",
    "-sc", "--shell-completion", "--experimental-rerun",
}  # fmt: skip


def _run_id(*, _root_: DictConfig) -> str:
    """A worker of a launcher names its point before it runs it, and must find the plug-ins for that."""
    put_last(_root_.hydra.runtime.cwd)
    return run_id(_root_)


OmegaConf.register_new_resolver("run_id", _run_id, replace=True)
logging.getLogger("hydra").addHandler(logging.NullHandler())  # what Hydra logs before it raises is in the error


@hydra.main(version_base="1.3", config_path=str(Path(__file__).parents[1] / "conf"), config_name="run")
def hydra_run(config: DictConfig) -> None:
    """One point. Its error must survive the way out of a launcher's process, so it becomes one line here."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    try:
        check_targets(HydraConfig.get())
        _run_point(config, folder)
    except BaseException as error:
        remove_empty(folder)
        if isinstance(error, Exception | SystemExit) and not isinstance(error, BrokenPipeError):
            raise InputError(one_line(error)) from error
        raise


def _run_point(config: DictConfig, folder: Path) -> None:
    """Simulate into the folder, unless it holds this run already."""
    job, console = HydraConfig.get(), wide_console()
    sweeping = job.mode == RunMode.MULTIRUN
    if sweeping:
        note(job.job.num, job.overrides.task, folder)
    known = None if AGAIN in os.environ else holds(folder, config)
    summary = known or run_into(config, folder, show=not sweeping)
    if sweeping:
        state = "complete already" if known else "done"
        console.print(f"{folder.name} {state}: {' '.join(job.overrides.task)}{_headline(summary)}", highlight=False)
        return
    console.print(summary_table(summary))
    state = "complete already, nothing was run (--again runs it again)" if known else "run folder"
    console.print(f"{state}: {folder}", highlight=False)


def _headline(summary: dict[str, Any]) -> str:
    latency = summary["normalized_latency_s_per_token"]["mean"]
    return "" if latency is None else f"  ({latency:.3g} s/token)"


def main(argv: list[str]) -> None:
    """Hand the arguments to Hydra, which then raises errors as they are."""
    again, argv = "--again" in argv, [argument for argument in argv if argument != "--again"]
    for argument in argv:
        if argument.startswith("-") and argument.partition("=")[0] not in HYDRA_FLAGS:
            raise InputError(f"unknown option {argument}; see testbed run --help")
        check_choice(argument)
    register_models()
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv = ["testbed run", *understood(argv)]
    with redirect_stderr(cast(TextIO, OneError(sys.stderr))), _environment(AGAIN, again), keys_explained(argv):
        if {"-m", "--multirun"}.isdisjoint(argv):
            hydra_run()
        else:
            _sweep()


def _sweep() -> None:
    """Run the points, then write and print their table."""
    with notes() as folder:
        hydra_run()
        found = points(folder)
    if found:
        table = found[0][1].parent / "sweep.csv"
        write_sweep(table, [point for point, _ in found])
        wide_console().print(shown([point for point, _ in found]))
        wide_console().print(f"every number of every point: {table}", highlight=False)


@contextmanager
def _environment(name: str, there: bool) -> Iterator[None]:
    """A variable that the workers of any launcher inherit, while the body runs."""
    if there:
        os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name, None)


class OneError:
    """Standard error without Hydra's announcement of an error that the command line will report itself."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Pass on anything else."""
        return len(text) if text.startswith("Error executing job with overrides") else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
