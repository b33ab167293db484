"""`testbed list`: every option that a config can select."""

import inspect
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from testbed.core.errors import InputError
from testbed.core.model_files import model_names, shipped
from testbed.experiments.cli.json_answers import Choice, Choices
from testbed.experiments.cli.parameters import AsJson, ConfigFolder
from testbed.experiments.runs.choice_names import (
    CLASS_OF_FILE,
    GROUPS,
    KEYS,
    files_of,
    names_of,
    plug_ins_of,
)
from testbed.experiments.runs.error_lines import one_line

MODEL_CLASS = "testbed.core.specs.ModelSpec"  # of the shapes that ship
BUILT_IN, USER_FOLDER = "built in", "user folder"


def list_choices(
    *groups: Annotated[
        str,
        Parameter(name="GROUP", help=f"default: all of {', '.join(GROUPS)}"),
    ],
    config_dir: ConfigFolder | None = None,
    json: AsJson = False,
) -> None:
    """List the options of every config group.

    Built-in ones, those of a user folder, and plug-ins of installed packages, which declare an
    entry point in the group testbed.policy, testbed.scheduler, ... All are selected by GROUP=NAME.
    """
    from testbed.experiments.cli.output import print_json

    _check_groups(groups)
    folders = [config_dir] if config_dir else []
    if folders and not folders[0].is_dir():
        raise InputError(key="--config-dir", value=folders[0], problem="no such folder")
    choices = [choice for group in groups or GROUPS for choice in choices_of(group, folders)]
    if json:
        print_json(Choices(choices))
    else:
        _print_table(choices)


def _check_groups(groups: Sequence[str]) -> None:
    from testbed.core.spelling import did_you_mean

    for group in groups:
        if group not in GROUPS:
            raise InputError(
                key=group,
                problem=f"is no group{did_you_mean(group, GROUPS)}",
                remedy=f"choose from {', '.join(GROUPS)}",
            )


def _print_table(choices: Sequence[Choice]) -> None:
    from rich.table import Table

    from testbed.experiments.cli.output import show
    from testbed.experiments.runs.unbroken import unbroken

    uses = "; ".join(f"{key}=NAME" for key in ("group", *KEYS.values()))
    table = Table("group", "name", "class", "about", caption=f"Chosen by {uses}")
    for before, choice in zip([None, *choices], choices, strict=False):
        if before and before.kind != choice.kind:
            table.add_section()
        is_own = choice.source in (BUILT_IN, USER_FOLDER)
        about = choice.about if is_own else f"{choice.about} ({choice.source})"
        table.add_row(choice.kind, choice.name, choice.target, about)
    show(unbroken(table, num_names=3))


def choices_of(group: str, folders: Sequence[Path]) -> Iterator[Choice]:
    """The options of a group: shipped models and GPUs, YAML files, then plug-ins."""
    if group == "model":
        for name in model_names():
            yield _choice(group, name, BUILT_IN, target=MODEL_CLASS, about=shipped(name)["about"])
    if group == "server":
        for name in files_of("gpu"):
            about = f"{name}; server.num_gpus says how many share the model"
            yield _choice(group, name, BUILT_IN, target="", about=about)
    for name, path in files_of(group, folders).items():
        if name in names_of(group, folders):
            is_users = any(path.is_relative_to(folder) for folder in folders)
            target, about = class_and_about(path)
            source = USER_FOLDER if is_users else BUILT_IN
            yield _choice(group, name, source, target=target, about=about)
    for point in plug_ins_of(group):
        source = f"package {point.dist.name}" if point.dist else "package"
        target = point.value.replace(":", ".")
        yield _choice(group, point.name, source, target=target, about=_about(point))


def _choice(group: str, name: str, source: str, *, target: str, about: str) -> Choice:
    option = f"{KEYS.get(group, group)}={name}"
    return Choice(group, name, option, source=source, target=target, about=about)


def class_and_about(path: Path) -> tuple[str, str]:
    """Class and first comment line of a YAML file, which is not parsed, so it may have errors."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    comments = (line.removeprefix("# ") for line in lines if line.startswith("# "))
    about = next((line for line in comments if not line.startswith("@package")), "")
    classes = (match["name"] for match in map(CLASS_OF_FILE.match, lines) if match)
    return next(classes, ""), about


def _about(point: EntryPoint) -> str:
    try:
        return (inspect.getdoc(point.load()) or "").partition("\n")[0]
    except (Exception, SystemExit) as error:  # a broken plug-in must not hide others
        return f"cannot be loaded: {one_line(error)}"
