"""Runs and sweeps launched by Hydra, in this process or in a launcher's processes."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, TextIO, cast

import hydra
from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.experiments.commands.console import wide_console
from testbed.experiments.commands.working_folder import put_last
from testbed.experiments.runs.choice_names import CONF
from testbed.experiments.runs.compose import key_errors_explained, register_models, typed_config
from testbed.experiments.runs.one_line import one_line
from testbed.experiments.runs.overrides import normalize
from testbed.experiments.runs.run_folder import is_of_another, load_complete_run, run_into
from testbed.experiments.runs.summary_table import summary_table
from testbed.experiments.runs.sweeps import note, notes, points, shown, write_sweep
from testbed.identity import run_id

AGAIN = "TESTBED_AGAIN"
RUNS = "runs"  # Hydra's default folder of all runs


def _name_run(*, _root_: DictConfig) -> str:
    """The run's name; a launcher's worker computes it before the run, and needs the plug-ins for it."""
    put_last(_root_.hydra.runtime.cwd)
    return run_id(typed_config(_root_))


def _mode(_: Hydra, config_name: str | None, overrides: list[str]) -> None:
    """No mode but that of -m; Hydra's method composes everything once more, only to read hydra.mode."""


Hydra.get_mode = _mode  # type: ignore[method-assign, assignment]
OmegaConf.register_new_resolver("run_id", _name_run, replace=True)
logging.getLogger("hydra").addHandler(logging.NullHandler())  # the error contains what Hydra logs before it raises


def launch(argv: list[str], again: bool) -> None:
    """Pass the arguments to Hydra, which raises errors unchanged; `again` repeats complete runs."""
    register_models()
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv = ["testbed run", *normalize(argv)]
    with redirect_stderr(cast(TextIO, OneError(sys.stderr))), _environment(AGAIN, again), key_errors_explained(argv):
        if {"-m", "--multirun"}.isdisjoint(argv):
            hydra_run()
        else:
            _sweep()


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="run")
def hydra_run(config: DictConfig) -> None:
    """Run one point. Its error becomes one line here, because not every exception can leave a launcher's process."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    try:
        _run_point(typed_config(config), folder)
    except BaseException as error:
        remove_empty(folder)
        if isinstance(error, Exception | SystemExit) and not isinstance(error, BrokenPipeError):
            raise InputError(one_line(error)) from error
        raise


def _run_point(config: RunConfig, folder: Path) -> None:
    """Simulate into the folder, unless it contains this complete run."""
    job, console = HydraConfig.get(), wide_console()
    sweeping = job.mode == RunMode.MULTIRUN
    if sweeping:
        note(job.job.num, job.overrides.task, folder)
    known = None if AGAIN in os.environ else load_complete_run(folder, run_id(config))
    if known is None and AGAIN not in os.environ and is_of_another(folder, run_id(config)):
        raise InputError(f"{folder}: has another run (--again replaces it; hydra.run.dir=... names another folder)")
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


def _sweep() -> None:
    """Run the points, then write and print their table."""
    with notes() as folder:
        hydra_run()
        found = points(folder)
    if found:
        from testbed.experiments.runs.sweep_chart import draw_sweep

        table, console = found[0][1].parent / "sweep.csv", wide_console()
        rows = [point for point, _ in found]
        write_sweep(table, rows)
        console.print(shown(rows, console.width))
        console.print(f"every number of every point: {table}", highlight=False)
        if draw_sweep(table.with_suffix(".png"), rows):
            console.print(f"figure: {table.with_suffix('.png')}", highlight=False)


@contextmanager
def _environment(name: str, there: bool) -> Iterator[None]:
    """Set an environment variable, which all launchers' workers inherit, while the body runs."""
    if there:
        os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name, None)


class OneError:
    """Standard error without Hydra's announcement of an error, which the command line reports."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write all other text."""
        return len(text) if text.startswith("Error executing job with overrides") else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def remove_empty(folder: Path) -> None:
    """Remove an empty run folder, and its parent if that is empty."""
    if any(folder.iterdir()):
        return
    folder.rmdir()
    if folder.parent.name == RUNS and not any(folder.parent.iterdir()):
        folder.parent.rmdir()
