"""`testbed completion`: tab completion for bash and zsh, of commands, flags, groups, options, their keys and figures.

The printed script calls `testbed completion --of LINE`, which reads the config's folders without importing Hydra.
"""

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout, suppress

from testbed.experiments.commands.parser import Parser
from testbed.experiments.runs.choice_names import CONF, CUSTOM, GROUPS, KEYS, files_of, names_of, plug_ins_of

SCRIPT = """[[ -z ${ZSH_VERSION-} ]] || { autoload -U +X bashcompinit && bashcompinit; }
_testbed() {
    local IFS=$'\\n'
    COMPREPLY=($(testbed completion --of "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
    [[ ${COMPREPLY[*]} == *= ]] && compopt -o nospace 2>/dev/null
}
complete -o default -F _testbed testbed"""
FLAG = re.compile(r"^  (?:-\w[^,]*, )?(--[\w-]+)", re.MULTILINE)
OVERRIDES = ("run", "capacity", "validate", "fit-software")  # commands that take overrides


def main(argv: list[str]) -> None:
    """Print the script, or the completions of a line."""
    this = Parser("completion", 'Tab completion: put  eval "$(testbed completion)"  into ~/.bashrc or ~/.zshrc.')
    this.add_argument("--of", metavar="LINE", help="print what could complete this command line")
    line = this.parse_args(argv).of
    print(SCRIPT if line is None else "\n".join(candidates(line)))


def candidates(line: str) -> list[str]:
    """The completions of a line's last word; after an equals sign only the part behind it, as bash requires."""
    words = line.split()
    last = "" if not words or line[-1].isspace() else words.pop()
    if len(words) < 2:
        from testbed.experiments.commands.cli import COMMANDS

        return _beginning(last, COMMANDS)
    if last.startswith("-"):
        return _beginning(last, _flags(words[1]))
    if words[1] == "list":
        return _beginning(last, GROUPS)
    if words[1] in ("reproduce", "plot"):
        return _beginning(last, sorted(path.stem for path in (CONF / "figure").glob("*.yaml")))
    key, equals, value = last.partition("=")
    if words[1] not in OVERRIDES:
        return []
    if not equals:
        return _beginning(last, [*(f"{KEYS.get(group, group)}=" for group in GROUPS), *_keys(words[2:])])
    group = key.lstrip("+").partition("@")[0]
    if group not in GROUPS:
        return []
    names = {*names_of(group), *(point.name for point in plug_ins_of(group))}
    return _beginning(value.rpartition(",")[2], names - {CUSTOM})


def _flags(command: str) -> list[str]:
    """The flags that a command's help lists."""
    from testbed.experiments.commands import cli, run

    if command == "run":  # its own help composes a run
        return FLAG.findall(run.parser().format_help())
    with redirect_stdout(io.StringIO()) as said, suppress(SystemExit):
        cli.dispatch([command, "--help"])
    return FLAG.findall(said.getvalue())


def _keys(words: Sequence[str]) -> Iterator[str]:
    import yaml

    run = yaml.safe_load((CONF / "run.yaml").read_text(encoding="utf-8"))
    choices = (choice for choice in run["defaults"] if isinstance(choice, dict))
    selected = {str(group): str(name) for choice in choices for group, name in choice.items()}
    selected |= {group: name for group, _, name in (word.partition("=") for word in words) if group in GROUPS}
    files = {group: files_of(group).get(name) for group, name in selected.items() if group in GROUPS}
    found = {group: yaml.safe_load(path.read_text(encoding="utf-8")) for group, path in files.items() if path}
    for above, values in [("", run), *((f"{group}.", values) for group, values in found.items())]:
        for key, value in values.items():
            if key in ("defaults", "hydra") or key.startswith("_"):
                continue
            nested = value if isinstance(value, dict) else {}
            yield from (f"{above}{key}.{inner}=" for inner in nested) if nested else (f"{above}{key}=",)


def _beginning(start: str, known: Iterable[str]) -> list[str]:
    return sorted(one for one in known if one.startswith(start))
