"""`testbed run --help`: the groups, and every value of the choices made so far, from the config's own files.

Composing with Hydra would take longer than the answer is worth; a test compares the keys with what Hydra composes.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from experiments.runs.known_choices import (
    ANY_SERVER,
    CONF,
    CUSTOM,
    GROUPS,
    MODEL_CLASS,
    did_you_mean,
    files_of,
    names_of,
)
from testbed.core.errors import InputError
from testbed.core.shapes import model_names, shipped

HELP = ("-h", "--help")
ABOVE = "testbed run [OVERRIDE ...]: one simulation. -m with comma-separated values: a sweep."
BELOW = """hydra.run.dir=DIR names the run folder; the default is runs/<hash of config and inputs>.
testbed run -m policy=contiguous_max,paged arrivals.rate=0.5,1,2 hydra/launcher=joblib uses all cores.
--config-dir DIR adds choices of your own: DIR/model/NAME.yaml, DIR/server/NAME.yaml, DIR/gpu/NAME.yaml, ...
What there is to choose from, with a line about each: testbed list"""
ENTRY = re.compile(r"  - (?P<group>/?[\w@./-]+?)(?::\s*(?P<choice>\S+))?\s*(?:#.*)?$")


def main(argv: list[str]) -> None:
    """Print the groups and the values; overrides before --help choose what is shown."""
    chosen = dict(one.lstrip("+").partition("=")[::2] for one in argv if "=" in one and not one.startswith(("-", "~")))
    folders = list(config_dirs(argv))
    print(ABOVE, "", "== Groups (choose with group=option) ==", sep="\n")
    for group in GROUPS:
        prefix = {"system": "+", "protocol": "+"}.get(group, "")
        where = "@policy.eviction" if group == "eviction" else ""
        print(f"{prefix}{group}{where}: {', '.join(names_of(group, folders))}")
    print("", "== Values (set with key=value) ==", *values(chosen, folders), "", BELOW, sep="\n")


def config_dirs(argv: Sequence[str]) -> Iterator[Path]:
    """The folders of one's own choices."""
    for argument, following in pairwise([*argv, ""]):
        flag, equals, value = argument.partition("=")
        if flag in ("--config-dir", "-cd"):
            yield Path(value if equals else following)


def values(chosen: dict[str, str], folders: list[Path]) -> Iterator[str]:
    """The lines of run.yaml with each group's file in the place of its default."""
    lines = (CONF / "run.yaml").read_text(encoding="utf-8").splitlines()
    defaults = dict(match.group("group", "choice") for line in lines if (match := ENTRY.match(line)))
    model = chosen.get("model", defaults["model"]).partition(",")[0]
    if "gpu" in chosen:
        chosen = {"server": ANY_SERVER, **chosen}
    for group, default in defaults.items():
        if group in GROUPS:
            choice = chosen.get(group, default.replace("${model}", model)).partition(",")[0]
            yield f"{group}:"
            yield from (f"  {line}" for line in body(group, choice, chosen, folders))
    yield from own_lines(lines, until="hydra:")


def body(group: str, choice: str, chosen: dict[str, str], folders: list[Path]) -> Iterator[str]:
    """The values of one choice, those of its own defaults first."""
    if group == "model" and choice in model_names():
        yield f"_target_: {MODEL_CLASS}"
        yield from (f"{key}: {json.dumps(value)}" for key, value in shipped(choice).shape.items())
        return
    path = files_of(group, folders).get(choice)
    if path is None:
        if group == "server" and choice.startswith("of-"):
            yield from body(group, ANY_SERVER, chosen, folders)
            return
        raise InputError(f"no {group}/{choice}{did_you_mean(choice, names_of(group, folders))}")
    lines = path.read_text(encoding="utf-8").splitlines()
    own = list(own_lines(lines))
    for line in lines:
        if match := ENTRY.match(line):
            yield from nested(group, match["group"], match["choice"], chosen, folders, own)
    if choice == CUSTOM:
        yield "# _target_ and what your class takes"
    yield from own


def nested(
    group: str, entry: str, choice: str | None, chosen: dict[str, str], folders: list[Path], own: list[str]
) -> Iterator[str]:
    """What one line of a defaults list brings: another choice of the group, a group in a place, or a file inline."""
    name, _, place = entry.removeprefix("/").partition("@")
    if entry == "_self_":
        return
    if choice is None and place == "_here_":
        yield from own_lines((CONF / f"{name}.yaml").read_text(encoding="utf-8").splitlines())
    elif choice is None:
        yield from body(group, name, chosen, folders)
    else:
        wanted = chosen.get(f"{name}@{group}.{place}", chosen.get(name, choice) if name == "gpu" else choice)
        changed = taken_block(own, place)
        names = {line.partition(":")[0] for line in changed}
        yield f"{place}:"
        inner = (f"  {line}" for line in body(name, wanted, chosen, folders))
        yield from (line for line in inner if line.partition(":")[0] not in names)
        yield from changed


def taken_block(lines: list[str], place: str) -> list[str]:
    """The indented lines below `place:`, taken out: what a file changes of a choice that it nests."""
    if f"{place}:" not in lines:
        return []
    start = lines.index(f"{place}:")
    end = next((i for i in range(start + 1, len(lines)) if not lines[i].startswith("  ")), len(lines))
    block = lines[start + 1 : end]
    del lines[start:end]
    return block


def own_lines(lines: list[str], until: str = "") -> Iterator[str]:
    """The values of a file as they stand there, comments behind them too, without its defaults list and header."""
    inside = False
    for line in lines:
        if until and line.startswith(until):
            return
        inside = line.startswith("defaults:") or (inside and line.startswith("  "))
        if not inside and line and not line.startswith("#"):
            yield line
