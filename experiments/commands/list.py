"""`testbed list`: every option that a config can select."""

import inspect
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

from testbed.core.errors import InputError
from testbed.core.shapes import model_names, shipped
from testbed.experiments.commands.parser import Parser
from testbed.experiments.runs.choice_names import GROUPS, HIDDEN, KEYS, MODEL_CLASS, files_of, plug_ins_of
from testbed.experiments.runs.one_line import one_line
from testbed.schema import did_you_mean

Row = tuple[str, str, str]


def main(argv: list[str]) -> None:
    """Print the configs of each group, and the classes of installed packages."""
    this = Parser(
        "list",
        "Lists the options of a config: built-in ones, those of a user folder, and plug-ins of installed packages, "
        "which declare an entry point in the group testbed.policy, testbed.scheduler, ... All are selected by "
        "group=name.",
    )
    this.add_argument("groups", nargs="*", metavar="GROUP", help=f"default: all of {', '.join(GROUPS)}")
    this.add_argument("--config-dir", type=Path, metavar="DIR", help="a folder of user options, as in testbed run")
    options = this.parse_args(argv)
    from rich.table import Table

    from testbed.experiments.commands.console import wide_console

    folders = [options.config_dir] if options.config_dir else []
    if folders and not folders[0].is_dir():
        raise InputError(f"--config-dir {folders[0]}: no such folder")
    unknown = [group for group in options.groups if group not in GROUPS]
    if unknown:
        this.error(f"no group {unknown[0]!r}{did_you_mean(unknown[0], GROUPS)}; choose from {', '.join(GROUPS)}")
    uses = "; ".join(f"{key}=NAME" for key in ("group", *KEYS.values()))
    table = Table("group", "name", "class", "about", caption=f"Chosen by {uses}")
    for group in options.groups or GROUPS:
        for row in [*built_in(group, folders), *plug_ins(group)]:
            table.add_row(group, *row)
        table.add_section()
    wide_console().print(table)


def built_in(group: str, folders: list[Path]) -> Iterator[Row]:
    """Name, class and first comment line of a group's YAML files; for a model, its shape's source."""
    if group == "model":
        yield from ((name, MODEL_CLASS, shipped(name).about) for name in model_names())
    for name, path in files_of(group, folders).items():
        if not name.startswith(HIDDEN):
            yield described(path)


def plug_ins(group: str) -> Iterator[Row]:
    """Name, class and first docstring line of the entry points for a group, with the package that declares each."""
    for point in plug_ins_of(group):
        package = f" (package {point.dist.name})" if point.dist else ""
        yield point.name, point.value.replace(":", "."), f"{_about(point)}{package}"


def _about(point: EntryPoint) -> str:
    try:
        return (inspect.getdoc(point.load()) or "").partition("\n")[0]
    except (Exception, SystemExit) as error:  # a broken plug-in must not hide others
        return f"cannot be loaded: {one_line(error)}"


def described(path: Path) -> Row:
    """Name, class and first comment line of one YAML file, which is not parsed, so it may have errors."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    comments = (line.removeprefix("# ") for line in lines if line.startswith("# "))
    about = next((line for line in comments if not line.startswith("@package")), "")
    target = next((line.partition(":")[2].strip() for line in lines if line.startswith("_target_:")), "")
    return path.stem, target, about
