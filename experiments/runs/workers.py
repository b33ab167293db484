"""Tasks over the cores, with a display of what runs and what is left; can be stopped and resumed at any time."""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from experiments.commands.one_line import one_line
from experiments.paper.studies.study import Row, Task
from experiments.runs.lab import Lab
from testbed.core.errors import InputError


def perform(tasks: Sequence[Task], lab: Lab, jobs: int) -> list[list[Row]]:
    """The rows of every task, in the order of the tasks. Finished runs are kept in the lab whatever happens."""
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("starting", total=len(tasks))
        if jobs == 1:
            return [_alone(task, lab, progress, bar) for task in tasks]
        return _together(tasks, lab, jobs, progress, bar)


def _alone(task: Task, lab: Lab, progress: Progress, bar: int) -> list[Row]:
    progress.update(bar, description=task.label)
    rows = task.work(lab)
    progress.advance(bar)
    return rows


def _together(tasks: Sequence[Task], lab: Lab, jobs: int, progress: Progress, bar: int) -> list[list[Row]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=context) as pool:
        futures: dict[Future[list[Row]], Task] = {pool.submit(carry_out, task, lab): task for task in tasks}
        try:
            progress.update(bar, description=_running(futures, jobs))
            for _ in as_completed(futures):
                progress.update(bar, advance=1, description=_running(futures, jobs))
                _raise_failed(futures)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise
        return [future.result() for future in futures]


def carry_out(task: Task, lab: Lab) -> list[Row]:
    """A task in a worker; its error must survive the way back, so it becomes one line here."""
    try:
        return task.work(lab)
    except Exception as error:
        raise InputError(f"{task.label}: {one_line(error)}") from error


def _raise_failed(futures: dict[Future[list[Row]], Task]) -> None:
    for future in futures:
        if future.done() and future.exception() is not None:
            future.result()


def _running(futures: dict[Future[list[Row]], Task], jobs: int) -> str:
    labels = [task.label for future, task in futures.items() if not future.done()]
    return " | ".join(labels[:jobs])
