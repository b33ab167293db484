"""The finished runs that a command names, each with a name to show."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from testbed.core.errors import InputError
from testbed.experiments.look.compare.differences import independent_differences, words_of_each
from testbed.experiments.look.compare.finished_run import FinishedRun, read_run
from testbed.experiments.runs.error_lines import short_names
from testbed.run.summaries import ID, RUN


def read_runs(arguments: Sequence[str]) -> list[FinishedRun]:
    """The runs of the arguments [NAME=]FOLDER.

    The default name is the folder's, with its parents if two folders have the same name. A folder
    that has the run's id for a name is called by what distinguishes its run from the others.
    """
    given = [_name_and_folder(text) for text in arguments]
    folders = [folder for _, folder in given]
    tails = short_names(folders)
    read = [
        read_run(name or tail, folder) for (name, folder), tail in zip(given, tails, strict=True)
    ]
    runs = _called_by_words(read)
    names = [run.name for run in runs]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(
            key=twice[0],
            problem="is the name of two runs",
            remedy=f"name them: a={folders[0]} b={folders[1]}",
        )
    return runs


def _name_and_folder(argument: str) -> tuple[str, Path]:
    """The parts of [NAME=]FOLDER; a folder's own name may have the sign too."""
    name, sign, folder = argument.partition("=")
    if not sign or Path(argument).is_dir():
        return "", Path(argument)
    return name, Path(folder)


def _called_by_words(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """The runs, with words for names that are ids, if these words are names of one run each."""
    words = words_of_each(independent_differences(runs))
    names = [
        text if run.name == run.summary[RUN].get(ID) and text else run.name
        for run, text in zip(runs, words, strict=True)
    ]
    if len(set(names)) < len(names):
        return list(runs)
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]
