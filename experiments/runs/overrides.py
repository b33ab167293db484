"""Converts user overrides to Hydra's: gpu=NAME, plug-ins by name, MODULE:CLASS.

An unknown name is refused here, with the nearest known one.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra.core.config_store import ConfigStore

from testbed.core.errors import InputError
from testbed.core.shapes import model_names
from testbed.experiments.runs.choice_names import (
    ANY_SERVER,
    CONF,
    CUSTOM,
    GROUPS,
    HIDDEN,
    files_of,
    names_of,
    plug_ins_of,
)
from testbed.schema import did_you_mean

FOLDER = "--config-dir="
PLAIN = re.compile(r"[\w.-]+")
CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
QUOTES = ("'", '"')


def normalize(arguments: Sequence[str]) -> list[str]:
    """The arguments as Hydra overrides, without the folders of options; registers the plug-ins that they name."""
    folders = user_folders(arguments)
    words = [argument for argument in arguments if not argument.startswith(FOLDER)]
    chosen = dict(map(_choice, words))
    result = [word for argument in words for word in _normalized(argument, set(chosen), folders)]
    _check_targets(result)
    if not {"server", "gpu"} & chosen.keys():
        for name in _names(chosen.get("model", "")):
            if f"{HIDDEN}{name}" not in files_of("server", folders):
                raise InputError(f"model={name}: has no default server (add server=... or gpu=...)")
    search = ", ".join(f"file://{folder.resolve()}" for folder in folders)
    return [*result, f"hydra.searchpath=[{search}]"] if folders else result


def user_folders(arguments: Sequence[str]) -> list[Path]:
    """The folders of options: the arguments --config-dir=DIR."""
    found = [Path(argument.removeprefix(FOLDER)) for argument in arguments if argument.startswith(FOLDER)]
    for folder in found:
        if not folder.is_dir():
            raise InputError(f"--config-dir {folder}: no such folder")
        _check_new(folder)
    return found


def _check_new(folder: Path) -> None:
    """No file may have the place of one that ships, which Hydra would take in its stead."""
    for path in sorted(folder.rglob("*.yaml")):
        place = path.relative_to(folder)
        if (CONF / place).is_file() or (place.parent == Path("model") and place.stem in model_names()):
            raise InputError(f"--config-dir {folder}: {place} has the name of one that ships; give it another name")


def _normalized(argument: str, groups: set[str], folders: Sequence[Path]) -> Iterator[str]:
    key, value = _choice(argument)
    group = key.partition("@")[0]
    if group in GROUPS and value in ("null", ""):
        raise InputError(f"{argument}: no {group} selected (`testbed list {group}` shows the options)")
    if value.strip("{ }") == "" and "{" in value:  # Hydra would merge it with what is there, so that nothing changed
        yield f"~{key}"
    elif key.endswith("._target_") and CLASS.fullmatch(value):
        yield argument.replace(":", ".")
    elif key == "workload.mix" and "," in value and value[0] not in QUOTES:
        yield argument.replace(f"={value}", f"='{value}'")  # its commas are no sweep
    elif key == "gpu":
        _check("gpu", value, folders)
        if "server" not in groups:
            yield f"server={ANY_SERVER}"
        yield f"gpu@server.gpu={value}"
    elif group in GROUPS and CLASS.fullmatch(value):
        yield f"{key}={CUSTOM}"
        yield f"{key.partition('@')[2] or key}._target_={value.replace(':', '.')}"
    else:
        if group in GROUPS:
            _check(group, value, folders)
        whole = value.startswith("{") and not argument.startswith("+")  # Hydra lets no key into an empty mapping
        yield f"++{argument}" if whole else argument


def _check_targets(words: Sequence[str]) -> None:
    """Raise InputError where a class on the command line would run under the name of another class's option."""
    chosen = {key.partition("@")[2] or key: value for key, value in map(_choice, words)}
    for word in words:
        node, _, last = _choice(word)[0].rpartition(".")
        group = "eviction" if node == "policy.eviction" else node
        if last == "_target_" and group in GROUPS and chosen.get(node) != CUSTOM:
            way_out = f"set {'eviction@policy.eviction' if group == 'eviction' else group}={CUSTOM}"
            raise InputError(f"{word}: would run under the name of another {group} ({way_out})")


def _choice(argument: str) -> tuple[str, str]:
    """Key and value of an override such as policy=paged or +system=vllm; empty where there is none."""
    key, equals, value = argument.partition("=")
    return (key.lstrip("+"), value) if equals and not argument.startswith(("-", "~")) else ("", "")


def _names(value: str) -> Iterator[str]:
    """The plain names in an override, or in a sweep over several; Hydra parses all other forms."""
    return (name.strip() for name in value.split(",") if PLAIN.fullmatch(name.strip()))


def _check(group: str, value: str, folders: Sequence[Path]) -> None:
    """Raise InputError unless every name is a file, a shipped model or a plug-in; plug-ins are registered in Hydra."""
    known = names_of(group, folders)
    for name in _names(value):
        if name in known or name == "null" or name in files_of(group, folders):
            continue
        points = plug_ins_of(group)
        point = next((point for point in points if point.name == name), None)
        if point is None:
            every = [*known, *(one.name for one in points)]
            hint = did_you_mean(name, every) or f"; choose from {', '.join(every)}"
            raise InputError(f"no {group}/{name}{hint}")
        target = point.value.replace(":", ".")
        node = {"defaults": [CUSTOM, "_self_"], "_target_": target}
        ConfigStore.instance().store(name=name, node=node, group=group, provider=f"{point.dist and point.dist.name}")
