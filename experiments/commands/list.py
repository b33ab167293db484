"""`testbed list` and `completion`: every option that a config can select, and tab completion for
bash and zsh.
"""

import inspect
import re
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

from testbed.core.errors import InputError
from testbed.core.shapes import model_names, shipped
from testbed.core.spelling import did_you_mean
from testbed.experiments.commands.terminal import commands, parser, show
from testbed.experiments.runs.choice_names import (
    CONF,
    CUSTOM,
    GROUPS,
    KEYS,
    files_of,
    names_of,
    plug_ins_of,
)
from testbed.experiments.runs.progress import one_line

SCRIPT = """[[ -z ${ZSH_VERSION-} ]] || { autoload -U +X bashcompinit && bashcompinit; }
_testbed() {
    local IFS=$'\\n'
    COMPREPLY=($(testbed completion --of "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
    [[ ${COMPREPLY[*]} == *= ]] && compopt -o nospace 2>/dev/null
}
complete -o default -F _testbed testbed"""
FLAG = re.compile(r"^  (?:-\w[^,]*, )?(--[\w-]+)", re.MULTILINE)
MODEL_CLASS = "testbed.core.specs.ModelSpec"  # of the shapes that ship
OVERRIDES = ("run", "capacity", "validate", "fit-software")  # commands that take overrides
Row = tuple[str, str, str]


def main(options: Namespace) -> None:
    """Print the configs of each group, and the classes of installed packages."""
    from rich.table import Table

    folders = [options.config_dir] if options.config_dir else []
    if folders and not folders[0].is_dir():
        raise InputError(f"--config-dir {folders[0]}: no such folder")
    unknown = [group for group in options.groups if group not in GROUPS]
    if unknown:
        known = f"choose from {', '.join(GROUPS)}; see testbed list --help"
        raise InputError(f"no group {unknown[0]!r}{did_you_mean(unknown[0], GROUPS)}; {known}")
    uses = "; ".join(f"{key}=NAME" for key in ("group", *KEYS.values()))
    table = Table("group", "name", "class", "about", caption=f"Chosen by {uses}")
    for group in options.groups or GROUPS:
        for row in [*built_in(group, folders), *plug_ins(group)]:
            table.add_row(group, *row)
        table.add_section()
    show(table)


def built_in(group: str, folders: list[Path]) -> Iterator[Row]:
    """Name, class and first comment line of a group's YAML files; of models and GPUs, what is
    registered of them.
    """
    if group == "model":
        yield from ((name, MODEL_CLASS, shipped(name)["about"]) for name in model_names())
    if group == "server":
        yield from (
            (name, "", f"{name}; server.num_gpus says how many share the model")
            for name in files_of("gpu")
        )
    for name, path in files_of(group, folders).items():
        if name in names_of(group, folders):
            yield described(path)


def plug_ins(group: str) -> Iterator[Row]:
    """Name, class and first docstring line of the entry points for a group, with the package that
    declares each.
    """
    for point in plug_ins_of(group):
        package = f" (package {point.dist.name})" if point.dist else ""
        yield point.name, point.value.replace(":", "."), f"{_about(point)}{package}"


def _about(point: EntryPoint) -> str:
    try:
        return (inspect.getdoc(point.load()) or "").partition("\n")[0]
    except (Exception, SystemExit) as error:  # a broken plug-in must not hide others
        return f"cannot be loaded: {one_line(error)}"


def described(path: Path) -> Row:
    """Name, class and first comment line of one YAML file, which is not parsed, so it may have
    errors.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    comments = (line.removeprefix("# ") for line in lines if line.startswith("# "))
    about = next((line for line in comments if not line.startswith("@package")), "")
    target = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("_target_:")), ""
    )
    return path.stem, target, about


def completion(options: Namespace) -> None:
    """Print the script, or the completions of a line."""
    print(SCRIPT if options.of is None else "\n".join(candidates(options.of)))


def candidates(line: str) -> list[str]:
    """The completions of a line's last word; after an equals sign only the part behind it, as bash
    requires.
    """
    words = line.split()
    last = "" if not words or line[-1].isspace() else words.pop()
    if len(words) < 2:
        return _beginning(last, commands())
    if words[1] not in commands():
        return []
    if last.startswith("-"):
        return _beginning(last, FLAG.findall(parser(words[1]).format_help()))
    if words[1] == "list":
        return _beginning(last, GROUPS)
    if words[1] in ("reproduce", "plot"):
        return _beginning(last, sorted(path.stem for path in (CONF / "figure").glob("*.yaml")))
    key, equals, value = last.partition("=")
    if words[1] not in OVERRIDES:
        return []
    if not equals:
        return _beginning(
            last, [*(f"{KEYS.get(group, group)}=" for group in GROUPS), *_keys(words[2:])]
        )
    group = key.lstrip("+").partition("@")[0]
    if group not in GROUPS:
        return []
    names = {*names_of(group), *(point.name for point in plug_ins_of(group))}
    return _beginning(value.rpartition(",")[2], names - {CUSTOM})


def _keys(words: Sequence[str]) -> Iterator[str]:
    import yaml

    run = yaml.safe_load((CONF / "run.yaml").read_text(encoding="utf-8"))
    choices = (choice for choice in run["defaults"] if isinstance(choice, dict))
    selected = {str(group): str(name) for choice in choices for group, name in choice.items()}
    selected |= {
        group: name for group, _, name in (word.partition("=") for word in words) if group in GROUPS
    }
    files = {
        group: files_of(group).get(name) for group, name in selected.items() if group in GROUPS
    }
    files["server"] = CONF / "memory.yaml"
    found = {
        group: yaml.safe_load(path.read_text(encoding="utf-8"))
        for group, path in files.items()
        if path
    }
    for above, values in [("", run), *((f"{group}.", values) for group, values in found.items())]:
        for key, value in values.items():
            if key in ("defaults", "hydra") or key.startswith("_"):
                continue
            nested = value if isinstance(value, dict) else {}
            yield from (
                (f"{above}{key}.{inner}=" for inner in nested) if nested else (f"{above}{key}=",)
            )


def _beginning(start: str, known: Iterable[str]) -> list[str]:
    return sorted(one for one in known if one.startswith(start))
