"""`testbed run`, launched: one run in this process, or a sweep that Hydra distributes to its
launcher's processes.
"""

import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from testbed.experiments.runs.kept_files import NO_LOGS, hydra_session
from testbed.experiments.runs.option_files import check_option_classes
from testbed.experiments.runs.overrides import chosen, normalize, user_folders

from testbed.core.errors import InputError
from testbed.experiments.cli.output import wide_console
from testbed.experiments.cli.working_folder import names_a_plug_in, put_last
from testbed.experiments.runs.compose import (
    configured,
    key_errors_explained,
    register_models,
    typed_config,
)
from testbed.experiments.runs.points import SEED, Point
from testbed.experiments.runs.progress import one_line
from testbed.experiments.runs.run_folder import run_into
from testbed.experiments.runs.summary_table import summary_table
from testbed.experiments.runs.sweep_progress import SweepProgress, num_points
from testbed.experiments.runs.whole_files import remove_leftovers

RUNS = "runs"  # the default folder of all runs
RUN_FOLDER, SWEEP_FOLDER = "hydra.run.dir", "hydra.sweep.dir"


def run_one(words: Sequence[str], again: bool) -> None:
    """Run one configuration and print its summary; `again` repeats a complete run."""
    config = configured([word for word in words if not word.startswith(f"{RUN_FOLDER}=")])
    requested = chosen(words).get(RUN_FOLDER)
    folder = None if requested is None else Path(requested)
    try:
        stored = run_into(config, Path(RUNS), folder, again=again, show=True)
    except SystemExit as error:  # of a plug-in
        raise InputError(one_line(error)) from None
    console = wide_console()
    console.print(summary_table(stored.summary))
    complete = "complete already, nothing was run (--again runs it again)"
    state = "run folder" if stored.is_new else complete
    console.print(f"{state}: {stored.folder}", highlight=False)


def sweep(words: Sequence[str], again: bool, *, per_seed: bool = False) -> None:
    """Run every combination, and write and print their table; one line for the first that fails.

    per_seed: a row for each seed.
    """
    # This imports pandas and matplotlib, which one run does not need.
    from testbed.experiments.runs.sweeps import draw_sweep, shown, write_sweep

    _check_seeds(chosen(words).get(SEED, ""))
    folder = Path(chosen(words).get(SWEEP_FOLDER, RUNS))
    register_models()
    with key_errors_explained(words), hydra_session() as launcher:
        overrides = normalize(words)
        progress = SweepProgress(folder.resolve(), num_points(overrides), time.time())
        point = partial(
            _run_point, words=words, working_folder=os.getcwd(), again=again, progress=progress
        )
        try:
            batches = launcher.multirun(
                "run", point, [*NO_LOGS, *overrides], with_log_configuration=False
            )
        finally:
            remove_leftovers(folder)  # of workers that were stopped
    results = [job.return_value for batch in batches for job in batch]
    points = [result for result in results if isinstance(result, Point)]
    if points:
        table, console = folder / "sweep.csv", wide_console()
        write_sweep(table, points)
        console.print(shown(points, console.width, per_seed=per_seed))
        console.print(f"every number of every point: {table}", highlight=False)
        if draw_sweep(table.with_suffix(".png"), points):
            console.print(f"figure: {table.with_suffix('.png')}", highlight=False)
    for error in (result for result in results if isinstance(result, str)):
        raise InputError(error)


def _check_seeds(text: str) -> None:
    """Raise InputError for a seed that is named twice, which would count as two replications."""
    seeds = text.split(",")
    twice = [seed for place, seed in enumerate(seeds) if seed in seeds[:place]]
    if twice:
        raise InputError(f"{SEED}={text}: has {twice[0]} twice (give each seed once)")


def _run_point(
    config: DictConfig,
    *,
    words: Sequence[str],
    working_folder: str,
    again: bool,
    progress: SweepProgress,
) -> Point | str:
    """Run one point; its error as one line, because not every exception can leave a launcher's
    process.
    """
    if names_a_plug_in(words):
        put_last(working_folder)
    hydra = HydraConfig.get()
    try:
        check_option_classes(config, words, user_folders(words))
        stored = run_into(typed_config(config), Path(hydra.sweep.dir), again=again)
    except (Exception, SystemExit) as error:
        return one_line(error)
    summary = stored.summary
    task = [word.replace("\\:", ":") for word in hydra.overrides.task]  # of MODULE:CLASS
    latency = summary["normalized_latency_s_per_token"]["mean"]
    headline = "" if latency is None else f"  ({latency:.3g} s/token)"
    state, name = "done" if stored.is_new else "complete already", stored.folder.name
    fixed = [word.lstrip("+") for word in words]
    varying = [word for word in task if word.lstrip("+") not in fixed] or task
    point = " ".join(word.removeprefix("++") for word in varying)
    far = progress.text(hydra.job.num + 1)
    wide_console().print(f"{name} {state}: {point}{headline}  {far}", highlight=False)
    return Point(chosen(task), summary, name)
