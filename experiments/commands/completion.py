"""`testbed completion`: tab completion for bash, of commands, groups, choices and figures.

The script that it prints asks `testbed completion --of LINE`, which reads the config's folders and imports no Hydra.
"""

from collections.abc import Iterable

from experiments.commands.arguments import Parser
from experiments.runs.known_choices import CONF, CUSTOM, GROUPS, names_of, plug_ins_of

SCRIPT = """_testbed() {
    local IFS=$'\\n'
    COMPREPLY=($(testbed completion --of "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -o default -F _testbed testbed"""
PREFIXES = {"system": "+", "protocol": "+"}
KEYS = {"eviction": "eviction@policy.eviction"}
OVERRIDES = ("run", "capacity", "validate", "fit-software")  # commands that take overrides


def main(argv: list[str]) -> None:
    """Print the script, or what could follow a line."""
    this = Parser(
        prog="testbed completion",
        description='Tab completion for bash: put  eval "$(testbed completion)"  into ~/.bashrc.',
    )
    this.add_argument("--of", metavar="LINE", help="print what could complete this command line")
    line = this.parse_args(argv).of
    print(SCRIPT if line is None else "\n".join(candidates(line)))


def candidates(line: str) -> list[str]:
    """What could stand where the line ends; after an equals sign only what follows it, as bash wants it."""
    words = line.split()
    last = "" if not words or line[-1].isspace() else words.pop()
    if len(words) < 2:
        from experiments.commands.cli import COMMANDS

        return _beginning(last, COMMANDS)
    if words[1] == "list":
        return _beginning(last, GROUPS)
    if words[1] == "reproduce":
        return _beginning(last, sorted(path.stem for path in (CONF / "figure").glob("*.yaml")))
    key, equals, value = last.partition("=")
    if words[1] not in OVERRIDES:
        return []
    if not equals:
        return _beginning(last, (f"{PREFIXES.get(group, '')}{KEYS.get(group, group)}=" for group in GROUPS))
    group = key.lstrip("+").partition("@")[0]
    if group not in GROUPS:
        return []
    names = {*names_of(group), *(point.name for point in plug_ins_of(group))}
    return _beginning(value.rpartition(",")[2], names - {CUSTOM})


def _beginning(start: str, known: Iterable[str]) -> list[str]:
    return sorted(one for one in known if one.startswith(start))
