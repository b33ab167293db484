"""The figures of a reproduction: their studies, run together over the cores, each drawn from its table, and scored.

Lines say what runs and what is left; it can be stopped and resumed at any time.
"""

import multiprocessing
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from pathlib import Path
from typing import Any

import hydra.utils
import pandas as pd

from testbed.core.errors import InputError
from testbed.experiments.paper import robustness
from testbed.experiments.paper.scorecard import scorecard
from testbed.experiments.paper.studies.study import Row, Study, Task
from testbed.experiments.runs.compose import composed
from testbed.experiments.runs.figure_style import save
from testbed.experiments.runs.one_line import one_line
from testbed.experiments.runs.progress import spoken
from testbed.experiments.runs.run_store import RunStore
from testbed.experiments.runs.whole_files import clean_up, write_text

Finished = Callable[[int, pd.DataFrame], None]
Done = Generator[tuple[int, list[Row]], None, None]  # tasks by their number, with their rows


def load(name: str, overrides: tuple[str, ...] = ()) -> Study:
    """The study that a figure's config describes."""
    study: Study = hydra.utils.instantiate(composed(f"figure/{name}", overrides).figure, _convert_="all")
    return study


def run_alternatives(figures: Sequence[str], work: robustness.Perform) -> pd.DataFrame:
    """The table of alternatives to the choices of these figures."""
    names = {figure: study.name for study in map(load, figures) for figure in study.covers}
    return robustness.compare(names, load, work)


def run_studies(
    studies: Sequence[Study], store: RunStore, jobs: int, num_seeds: int | None, out: Path
) -> list[pd.DataFrame]:
    """The table of each study, published as soon as its own tasks are done."""

    def finished(number: int, table: pd.DataFrame) -> None:
        publish(studies[number], table, out)

    return perform([study.tasks(num_seeds) for study in studies], store, jobs, finished)


def publish(study: Study, table: pd.DataFrame, out: Path) -> None:
    """Write the table, then draw from what was written."""
    path = out / f"{study.name}.csv"
    write_text(path, table.to_csv(index=False))
    figure = study.draw(path)
    for suffix in ("png", "pdf"):
        save(figure, out / f"{study.name}.{suffix}")


def score(studies: Sequence[Study], tables: Sequence[pd.DataFrame], out: Path) -> pd.DataFrame:
    """The scorecard of the figures' tables, written too."""
    findings = [f for study, table in zip(studies, tables, strict=True) for f in study.findings(table)]
    card = scorecard(findings, [name for study in studies for name in study.covers])
    card = robustness.annotated(card, out)
    write_text(out / "scorecard.csv", card.to_csv(index=False))
    return card


def nothing(*_: Any) -> None:
    """Ignores progress."""


def perform(
    groups: Sequence[Sequence[Task]], store: RunStore, jobs: int, finished: Finished = nothing
) -> list[pd.DataFrame]:
    """A table for each group of tasks; the tasks of all share the cores. Finished runs are kept in the store.

    `finished` receives the number and the table of each group as soon as it is done.
    """
    tasks = [task for group in groups for task in group]
    owners = [number for number, group in enumerate(groups) for _ in group]
    rows: dict[int, list[Row]] = {}
    tables = [pd.DataFrame() for _ in groups]
    waiting = {number: task.label for number, task in enumerate(tasks)}

    def progress() -> str:
        running = " | ".join([*waiting.values()][:jobs])
        return f"{len(tasks) - len(waiting)} of {len(tasks)} done; running: {running or 'drawing'}"

    with spoken(progress), closing((_alone if jobs == 1 else _in_parallel)(tasks, store, jobs)) as done:
        for task, found in done:
            del waiting[task]
            rows[task], group = found, owners[task]
            mine = [number for number, owner in enumerate(owners) if owner == group]
            if rows.keys() >= set(mine):
                tables[group] = pd.DataFrame([row for number in mine for row in rows[number]])
                finished(group, tables[group])
    return tables


def _alone(tasks: Sequence[Task], store: RunStore, jobs: int) -> Done:
    for number, task in enumerate(tasks):
        yield number, task.work(store)


def _in_parallel(tasks: Sequence[Task], store: RunStore, jobs: int) -> Done:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(tasks)) or 1, mp_context=context) as pool:
        numbers = {pool.submit(carry_out, task, store): number for number, task in enumerate(tasks)}
        try:
            for future in as_completed(numbers):
                yield numbers[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            workers = multiprocessing.active_children()
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.join()
            clean_up(store.folder)
            raise


def carry_out(task: Task, store: RunStore) -> list[Row]:
    """A task in a worker; its error must survive the way back, so it becomes one line here."""
    try:
        return task.work(store)
    except Exception as error:
        raise InputError(f"{task.label}: {one_line(error)}") from error
