"""`testbed list`: everything that a config can name."""

import inspect
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import yaml
from rich.table import Table

from experiments.commands.arguments import Parser
from experiments.commands.console import wide_console
from experiments.commands.one_line import one_line
from experiments.runs.lab import CONF
from experiments.runs.model_group import GROUP, MODEL_CLASS
from testbed.core.shapes import model_names, shipped

GROUPS = ("policy", "scheduler", "preemption", "beams", "cost", "trace", "arrivals", "model", "server", "system")
ENTRY_POINTS = "testbed.{}"


def main(argv: list[str]) -> None:
    """Print the configs of each group, and the classes that installed packages offer."""
    this = Parser(
        prog="testbed list",
        description="What a config can name: built-in choices (group=name), and plug-ins of installed packages, "
        "which declare an entry point in the group testbed.policy, testbed.scheduler, ... and are used by "
        "group=custom group._target_=module.Class.",
    )
    this.add_argument("groups", nargs="*", metavar="GROUP", help=f"default: all of {', '.join(GROUPS)}")
    wanted = this.parse_args(argv).groups or GROUPS
    unknown = [group for group in wanted if group not in GROUPS]
    if unknown:
        this.error(f"no group {unknown[0]!r}; choose from {', '.join(GROUPS)}")
    table = Table("group", "name", "class", "about")
    for group in wanted:
        for row in [*built_in(group), *plug_ins(group)]:
            table.add_row(group, *row)
        table.add_section()
    wide_console().print(table)


def built_in(group: str) -> list[tuple[str, str, str]]:
    """Name, class and first comment line of a group's YAML files; of a model, what its shape's file says."""
    if group == GROUP:
        return [(name, MODEL_CLASS, shipped(name).about) for name in model_names()]
    return [_described(path) for path in sorted((CONF / group).glob("*.yaml")) if not path.stem.startswith("of-")]


def plug_ins(group: str) -> list[tuple[str, str, str]]:
    """Name, class and first docstring line of the entry points for a group."""
    return [
        (point.name, point.value.replace(":", "."), _about(point))
        for point in sorted(entry_points(group=ENTRY_POINTS.format(group)))
    ]


def _about(point: EntryPoint) -> str:
    try:
        return (inspect.getdoc(point.load()) or "").partition("\n")[0]
    except (Exception, SystemExit) as error:  # one broken plug-in hides no other
        return f"cannot be loaded: {one_line(error)}"


def _described(path: Path) -> tuple[str, str, str]:
    text = path.read_text(encoding="utf-8")
    comments = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]
    about = next((line for line in comments if not line.startswith("@package")), "")
    return path.stem, str(yaml.safe_load(text).get("_target_", "")), about
