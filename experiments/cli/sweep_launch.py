"""A sweep of `testbed run -m`, whose points a launcher runs."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from testbed.core.errors import AnswerIsNo, InputError
from testbed.experiments.cli.compared_servers import asked_of, check_built, words_of_point
from testbed.experiments.cli.json_answers import sweep_answer
from testbed.experiments.cli.output import print_json, wide_console
from testbed.experiments.cli.parameters import check_folder_of
from testbed.experiments.cli.run_launch import RUNS
from testbed.experiments.cli.served_command import ServedCommand
from testbed.experiments.cli.working_folder import enter
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.error_lines import as_refusal
from testbed.experiments.runs.launchers import launched
from testbed.experiments.runs.notes import print_notes
from testbed.experiments.runs.one_source import OF_ONE_SOURCE, WHY, sources_differ
from testbed.experiments.runs.points import SEED, Point, differing
from testbed.experiments.runs.progress import status_line
from testbed.experiments.runs.quiet import QUIET
from testbed.experiments.runs.replicated import COMMAND
from testbed.experiments.runs.run_folder import run_into
from testbed.experiments.runs.sweep_files import table_for
from testbed.experiments.runs.sweep_progress import SweepProgress
from testbed.experiments.runs.sweep_words import sweep_points
from testbed.experiments.runs.whole_files import remove_leftovers
from testbed.experiments.runs.words import OF_OPTIONS, chosen, is_of_hydra
from testbed.run.identity import run_id

if TYPE_CHECKING:
    from testbed.experiments.cli.run import Launch

QUOTES = "'\""
SWEEP_FOLDER = "hydra.sweep.dir"


class SweepPoint(NamedTuple):
    """A combination of a sweep's values: the words that ask for it, and those that run it, of
    which some follow from a server's command. command: its own words beside other commands.
    """

    asked: tuple[str, ...]
    words: tuple[str, ...]
    command: str = ""

    @property
    def values(self) -> dict[str, str]:
        """The chosen values by key: as they were asked for, even if the server's command stands
        for them in other words, and what follows from them.
        """
        return {**self.axes, **values_of_words(self.words), **self.axes}

    @property
    def axes(self) -> dict[str, str]:
        """The values that were asked for by key, and the command if the sweep has several."""
        command = {COMMAND: self.command} if self.command else {}
        return {**command, **values_of_words(self.asked)}


def points_of(
    asked: Sequence[str], servers: Mapping[str, ServedCommand], folders: Sequence[Path]
) -> tuple[list[SweepPoint], list[str]]:
    """Every combination of each server, as its values give it the command, and the notes on these.
    Notes that several have are printed once.
    """
    points, notes = list[SweepPoint](), list[str]()
    others = [word for word in asked if not is_of_hydra(word)]
    for command, of_server in asked_of(servers, others, folders).items():
        for combination in sweep_points(of_server):
            own = [*filter(None, [command]), *(of for of in combination if of not in of_server)]
            words = words_of_point(servers[command], combination, own, folders, notes.append)
            points.append(SweepPoint(combination, tuple(words), command))
    if sources_differ([point.words for point in points]):
        points = [point._replace(words=(*point.words, OF_ONE_SOURCE)) for point in points]
        notes.append(WHY)
    return points, print_notes(notes)


def sweep_of(
    asked: Sequence[str],
    servers: Mapping[str, ServedCommand],
    folders: Sequence[Path],
    launch: "Launch",
) -> None:
    """Run every point of the words `asked`, of every server's command, and write and print their
    table; one line for the first that fails. A sweep that is stopped prints the points that were
    done.
    """
    points, notes = points_of(asked, servers, folders)
    _check_seeds(chosen(asked).get(SEED, ""))
    _check_figure(launch.figure, launch.columns)
    folder = Path(chosen(asked).get(SWEEP_FOLDER, RUNS))
    of_launcher = [word for word in asked if is_of_hydra(word)]
    ids = _ids_of(points)
    shows = not (launch.json or QUIET.get())
    progress = SweepProgress(folder.resolve(), ids, len(points), time.time(), shows)
    jobs = [
        PointJob(point, _varying(point, asked), i, launch.again, progress, os.getcwd())
        for i, point in enumerate(points, start=1)
    ]
    names = differing([point.axes for point in points])
    results = list[Point | InputError]()
    try:
        with status_line(lambda: str(progress)):
            for result in launched(of_launcher, jobs, progress.folder):
                results.append(result)
    except KeyboardInterrupt:
        _answer(results, names, folder, launch, notes)
        raise
    finally:
        remove_leftovers(folder)  # of workers that were stopped
    error = next((result for result in results if isinstance(result, InputError)), None)
    if not (error and launch.json):
        _answer(results, names, folder, launch, notes)
    if error:
        raise error


def _ids_of(points: Sequence[SweepPoint]) -> set[str]:
    """The ids of all runs. Raises InputError for a point that cannot be built; a pool that does
    not fit is the answer of its point.
    """
    ids = set[str]()
    for point in points:
        with suppress(AnswerIsNo):
            ids.add(run_id(check_built(point.words)))
    return ids


def _answer(
    results: Sequence[Point | InputError],
    names: Sequence[str],
    folder: Path,
    launch: "Launch",
    notes: list[str],
) -> None:
    """Write the table of the points that ended well over the axes `names` into the folder, beside
    those of other sweeps, draw it, and print it or the JSON; nothing without such a point.
    """
    # This imports pandas and matplotlib, which one run does not need.
    from testbed.experiments.runs.sweep_table import draw_sweep, shown, write_sweep

    points = [result for result in results if isinstance(result, Point)]
    if not points:
        return
    table = table_for(folder, [point.folder for point in points])
    write_sweep(table, points, names)
    file = launch.figure or table.with_suffix(".png")
    figure = file if draw_sweep(file, points, launch.columns) else None
    if launch.json:
        return print_json(sweep_answer(points, table, figure, notes))
    console = wide_console()
    console.print(shown(points, console.width, names))
    console.print(f"every number of every point, such as ttft_s_p95: {table}", highlight=False)
    if figure:
        console.print(f"figure: {figure}", highlight=False)
    elif launch.figure or launch.metrics:
        console.print("no figure: no axis has three numbers, or no run has these metrics")


def _check_figure(file: Path | None, metrics: Sequence[str]) -> None:
    """Raise InputError for a figure that could not be drawn, before anything is run."""
    if metrics:
        from testbed.experiments.runs.sweep_metrics import panels_of

        panels_of(metrics)
    check_folder_of(file)


def _check_seeds(text: str) -> None:
    """Raise InputError for a seed that is named twice, which would count as two replications."""
    seeds = text.split(",")
    twice = [seed for place, seed in enumerate(seeds) if seed in seeds[:place]]
    if twice:
        raise InputError(
            key=SEED, value=text, problem=f"has {twice[0]} twice", remedy="give each seed once"
        )


def _varying(point: SweepPoint, words: Sequence[str]) -> str:
    """The words of a point that other points do not have; all of them for one without others."""
    own = [word for word in point.asked if not word.startswith(OF_OPTIONS)]
    varying = [word for word in own if word not in words]
    return " ".join([*filter(None, [point.command]), *varying] or own)


@dataclass(frozen=True)
class PointJob:
    """The run of one point, in a process of the launcher.

    name: what the printed line says of it. place: from 1. working_folder: that of the command,
    if plug-ins may be.
    """

    point: SweepPoint
    name: str
    place: int
    again: bool
    progress: SweepProgress
    working_folder: str

    def __call__(self) -> Point | InputError:
        """The point, or its refusal: not every exception can leave another process."""
        enter(self.working_folder, self.point.words)
        try:
            stored = run_into(configured(self.point.words), self.progress.folder, again=self.again)
        except (Exception, SystemExit) as error:
            return as_refusal(error)
        folder, latency = stored.folder.name, _latency(stored.summary)
        state = "done" if stored.is_new else "complete already"
        if self.progress.shows:
            line = f"{folder} {state}: {self.name}{latency}  {self.progress.text(self.place)}"
            wide_console().print(line, highlight=False)
        return Point(self.point.values, stored.summary, folder)


def values_of_words(words: Sequence[str]) -> dict[str, str]:
    """The values that a point's words choose, by key."""
    own = [word for word in words if not word.startswith(OF_OPTIONS)]
    return {key: value.strip(QUOTES) for key, value in chosen(own).items()}


def _latency(summary: Mapping[str, Mapping[str, float | None]]) -> str:
    mean = summary["normalized_latency_s_per_token"]["mean"]
    return "" if mean is None else f"  ({mean:.3g} s/token)"
