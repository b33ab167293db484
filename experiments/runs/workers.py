"""Tasks over the cores, with a display of what runs and what is left; can be stopped and resumed at any time."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from experiments.commands.one_line import one_line
from experiments.commands.progress import spoken
from experiments.paper.studies.study import Row, Task
from experiments.runs.lab import Lab
from experiments.runs.whole_files import clean_up
from testbed.core.errors import InputError

Finished = Callable[[int, list[Row]], None]


def nothing(*_: Any, **__: Any) -> None:
    """What is done where nobody wants to know."""


def perform(tasks: Sequence[Task], lab: Lab, jobs: int, finished: Finished = nothing) -> list[list[Row]]:
    """The rows of every task, in the order of the tasks. Finished runs are kept in the lab whatever happens.

    `finished` is told the number of each task that is done, and its rows, at once.
    """
    state = State(len(tasks))
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as progress, _aloud(state, console):
        state.show = partial(progress.update, progress.add_task("starting", total=len(tasks)))
        if jobs == 1:
            return [_alone(i, task, lab, state, finished) for i, task in enumerate(tasks)]
        return _together(tasks, lab, jobs, state, finished)


@dataclass
class State:
    """How many tasks are done, and which ones run; `show` draws it."""

    total: int
    done: int = 0
    running: str = ""
    show: Callable[..., None] = nothing

    def update(self, done: int, running: str) -> None:
        """It has changed."""
        self.done, self.running = done, running
        self.show(completed=done, description=running)

    def __str__(self) -> str:
        return f"{self.done} of {self.total} done; running: {self.running}"


def _aloud(state: State, console: Console) -> AbstractContextManager[None]:
    return nullcontext() if console.is_terminal else spoken(lambda: str(state))


def _alone(number: int, task: Task, lab: Lab, state: State, finished: Finished) -> list[Row]:
    state.update(number, task.label)
    rows = task.work(lab)
    finished(number, rows)
    return rows


def _together(tasks: Sequence[Task], lab: Lab, jobs: int, state: State, finished: Finished) -> list[list[Row]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=context) as pool:
        futures: dict[Future[list[Row]], Task] = {pool.submit(carry_out, task, lab): task for task in tasks}
        numbers = {future: number for number, future in enumerate(futures)}
        try:
            state.update(0, _running(futures, jobs))
            for done, future in enumerate(as_completed(futures), 1):
                state.update(done, _running(futures, jobs))
                _raise_failed(futures)
                finished(numbers[future], future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            workers = multiprocessing.active_children()
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.join()
            clean_up(lab.folder)
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
